"""Topics as streams: `spark.readStream.format("penstock")`.

An offset of the stream is JSON, kept in the query's checkpoint:

    {"orders": {"id": "<topic id>", "ends": {"0": 120, "1": 80}, "begins": {"1": 0}}}

`ends` is where the next micro-batch starts. `begins` names partitions that came with this batch, and where they began:
a batch that is repeated after a crash has to begin at the same offset, whatever retention has done since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.ids import TopicPartition
from penstock.pipeline.failure import DataLossError
from penstock.pipeline.source.tables import RangePartition, read_range
from penstock.pipeline.topics.kafka import Brokers, Topic
from penstock.pipeline.topics.options import ReadOptions
from penstock.pipeline.topics.positions import partitions_of, start_offsets, subscribed
from penstock.pipeline.topics.ranges import Range, limited, split

if TYPE_CHECKING:
    import pyarrow as pa

Ends = dict[TopicPartition, int]
Ids = Mapping[str, str]
Offset = dict[str, dict[str, Any]]


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, reads them in tasks."""

    def __init__(self, reading: ReadOptions, columns: Sequence[str]) -> None:
        self._reading = reading
        self._columns = tuple(columns)
        self._brokers = Brokers(reading.kafka)
        self._last: Offset | None = None
        # Where reading stops for good, with Trigger.AvailableNow.
        self._final: Ends | None = None

    def initialOffset(self) -> Offset:
        topics = subscribed(self._brokers, self._reading.subscription)
        partitions = partitions_of(topics.values())
        firsts, lasts = self._brokers.first_offsets(partitions), self._ends(partitions)
        return written(_ids(topics), start_offsets(self._brokers, self._reading, firsts, lasts))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._reading.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        topics = subscribed(self._brokers, self._reading.subscription)
        self._final = self._ends(partitions_of(topics.values()))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        topics = subscribed(self._brokers, self._reading.subscription)
        old_ids, starts = read(start)
        starts = self._still_there(topics, old_ids, starts)
        partitions = partitions_of(topics.values())
        new = [at for at in partitions if at not in starts]
        begins = self._brokers.first_offsets(new)
        starts |= begins
        lasts = self._ends(partitions)
        self._last = written(_ids(topics), lasts)
        if self._final is not None:
            # What came since belongs to the next run, and so do partitions that came since.
            lasts = {at: min(lasts[at], self._final.get(at, starts[at])) for at in partitions}
        self._check_kept(starts, lasts)
        ends = {at: max(starts[at], lasts[at]) for at in partitions}
        if isinstance(limit, ReadMaxRows):
            ends = limited(starts, ends, limit.max_rows)
        return written(_ids(topics), ends, begins)

    def reportLatestOffset(self) -> Offset | None:
        return self._last

    def partitions(self, start: Offset, end: Offset) -> Sequence[RangePartition]:
        old_ids, starts = read(start)
        ids, ends = read(end)
        starts = {at: offset for at, offset in starts.items() if old_ids[at.topic] == ids.get(at.topic)} | begun(end)
        # A partition that was there before and has no start is of a topic that was there under another id.
        ranges = [Range(at.topic, ids[at.topic], at.partition, starts.get(at, 0), ends[at]) for at in ends]
        return [RangePartition(each) for each in split(ranges, self._reading.min_partitions)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_range(self._reading, self._columns, partition)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks are sent the reader, and need no connection of the driver's.
        return self.__dict__ | {"_brokers": None, "_last": None, "_final": None}

    def _ends(self, partitions: Iterable[TopicPartition]) -> Ends:
        return self._brokers.end_offsets(partitions, committed=self._reading.is_read_committed)

    def _still_there(self, topics: Mapping[str, Topic], old_ids: Ids, starts: Ends) -> Ends:
        """Where the partitions start that are the same as before; one that is not is lost data, or to be begun anew."""
        kept = {}
        for at, offset in starts.items():
            topic = topics.get(at.topic)
            if topic is not None and topic.topic_id == old_ids[at.topic] and at.partition in topic.partitions:
                kept[at] = offset
            elif self._reading.fail_on_data_loss and not self._had_ended(at, offset):
                what = (
                    "is gone" if topic is None or topic.topic_id == old_ids[at.topic] else "was deleted and made anew"
                )
                raise DataLossError(
                    f"{at} {what}, it had been read up to {offset}; failOnDataLoss=false goes on with what there is"
                )
        return kept

    def _had_ended(self, at: TopicPartition, offset: int) -> bool:
        """Whether nothing was left to read when it was last looked at, as with a partition that was retired."""
        return self._last is not None and read(self._last)[1].get(at, offset + 1) <= offset

    def _check_kept(self, starts: Ends, lasts: Ends) -> None:
        for at, last in lasts.items():
            if last < starts[at] and self._final is None and self._reading.fail_on_data_loss:
                raise DataLossError(
                    f"{at} ends at {last} but was read up to {starts[at]}: its log was cut; "
                    "failOnDataLoss=false goes on with what there is"
                )


def written(ids: Ids, ends: Mapping[TopicPartition, int], begins: Mapping[TopicPartition, int] | None = None) -> Offset:
    """An offset of the stream as JSON can hold it."""
    offset: Offset = {topic: {"id": topic_id, "ends": {}} for topic, topic_id in sorted(ids.items())}
    for at, end in sorted(ends.items()):
        offset[at.topic]["ends"][str(at.partition)] = end
    for at, begin in sorted((begins or {}).items()):
        offset[at.topic].setdefault("begins", {})[str(at.partition)] = begin
    return offset


def read(offset: Offset) -> tuple[dict[str, str], Ends]:
    """Topic ids and ends of an offset."""
    ids = {topic: each["id"] for topic, each in offset.items()}
    return ids, {
        TopicPartition(topic, int(number)): end
        for topic, each in offset.items()
        for number, end in each["ends"].items()
    }


def begun(offset: Offset) -> Ends:
    """Where partitions began that were new."""
    return {
        TopicPartition(topic, int(number)): begin
        for topic, each in offset.items()
        for number, begin in each.get("begins", {}).items()
    }


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in topics.items()}
