"""Topics as tables: `spark.read.format("penstock")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.pipeline.source.filters import Narrowing, after, narrowed
from penstock.pipeline.topics.kafka import Brokers
from penstock.pipeline.topics.options import ReadOptions
from penstock.pipeline.topics.positions import planned
from penstock.pipeline.topics.ranges import Range, split

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class TopicTable(DataSourceReader):
    """Reads ranges that are fixed when the query is planned."""

    def __init__(self, reading: ReadOptions, columns: Sequence[str]) -> None:
        self._reading = reading
        self._columns = tuple(columns)
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[RangePartition]:
        brokers = Brokers(self._reading.kafka)
        ranges = self._narrowing.of(planned(brokers, self._reading))
        if self._narrowing.since_ms is not None:
            times = {each.at: self._narrowing.since_ms for each in ranges}
            ranges = after(ranges, brokers.offsets_since(times))
        return [RangePartition(each) for each in split(ranges, self._reading.min_partitions)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_range(self._reading, self._columns, partition)


class NarrowedTable(TopicTable):
    """The same, told of a query's filters; Spark refuses such a reader where it does not push filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        self._narrowing = narrowed(filters)
        yield from filters


def read_range(
    reading: ReadOptions, columns: Sequence[str], partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Batches of one range; Spark reads nothing by a partition that is None."""
    from penstock.pipeline.topics.columns import batch_of
    from penstock.pipeline.topics.range_reader import RangeReader

    if not isinstance(partition, RangePartition):
        return
    wanted = partition.wanted
    with RangeReader(
        reading.kafka,
        longest=wanted.length,
        fail_on_data_loss=reading.fail_on_data_loss,
        poll_timeout_ms=reading.poll_timeout_ms,
    ) as fetcher:
        for messages in fetcher.read(wanted):
            yield batch_of(messages, columns)
        fetcher.verify(wanted.topic, wanted.topic_id)
