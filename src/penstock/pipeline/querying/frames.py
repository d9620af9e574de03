"""History as frames of Spark, with the columns of the lake's table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.pipeline.lake.record_table import SCHEMA
from penstock.pipeline.querying.history import HistorySlice, TimeWindow
from penstock.pipeline.querying.stored_files import StoredFile, frame_of
from penstock.pipeline.source.datasource import COLUMNS as OF_TOPICS
from penstock.pipeline.topics.options import KAFKA_PREFIX
from penstock.pipeline.topics.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.pipeline.lake.delta import LakeFile, LakeLocation

ALL = tuple(SCHEMA.names)
_WHOLE = from_arrow_schema(SCHEMA)

_WORTH_SPLITTING = 200_000
"""So many live records are read by as many tasks as run at once, however few partitions have them."""


class HistoryReader:
    """Makes frames of slices, from where the lake and the brokers are."""

    def __init__(self, spark: SparkSession, location: LakeLocation | None, kafka: Mapping[str, str] | None) -> None:
        self._spark = spark
        self._location = location
        self._kafka = kafka

    def frame(self, wanted: HistorySlice, window: TimeWindow, columns: Sequence[str] = ALL) -> DataFrame:
        """The records of a slice that lie in the window; builds only the requested columns."""
        needed = [name for name in ALL if name in columns or name == "timestamp"]
        parts = []
        if wanted.files:
            parts.append(self._archived(wanted.files, needed))
        if wanted.ranges:
            parts.append(self._live(wanted.ranges, needed))
        if not parts:
            return self._spark.createDataFrame([], _WHOLE).select(*columns)
        whole = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        if window.since is not None:
            whole = whole.where(F.col("timestamp") >= F.lit(window.since))
        if window.until is not None:
            whole = whole.where(F.col("timestamp") < F.lit(window.until))
        return whole.select(*columns)

    def _archived(self, files: Iterable[LakeFile], columns: Sequence[str]) -> DataFrame:
        assert self._location is not None
        stored = [StoredFile(file.path, file.size, {"topic": file.topic, "date": file.date}) for file in files]
        # The schema is given, because files that are older than a column lack it.
        return frame_of(self._spark, self._location, stored, StructType([_WHOLE[name] for name in columns]))

    def _live(self, ranges: Sequence[Range], columns: Sequence[str]) -> DataFrame:
        assert self._kafka is not None
        made = {"topic": "topic", "timestamp": "timestamp"} | {
            name: _IN_TOPICS.get(name, name) for name in columns if _IN_TOPICS.get(name, name) in OF_TOPICS
        }
        schema = StructType([StructField(name, OF_TOPICS[name]) for name in made.values()])
        reader = self._spark.read.format("penstock").schema(schema)
        for name, value in self._kafka.items():
            reader = reader.option(f"{KAFKA_PREFIX}{name}", value)
        read = reader.option("assign", _by_topic(ranges)).options(
            startingOffsets=_offsets((each, each.start) for each in ranges),
            endingOffsets=_offsets((each, each.end) for each in ranges),
        )
        if sum(each.length for each in ranges) > _WORTH_SPLITTING:
            read = read.option("minPartitions", self._spark.sparkContext.defaultParallelism)
        ids = {each.topic: each.topic_id for each in ranges}
        return read.load().select(*(_live_column(name, made, ids).alias(name) for name in columns))


_IN_TOPICS = {"timestamp_type": "timestampType"}
"""What is called otherwise in tables of topics."""


def _live_column(name: str, made: Mapping[str, str], ids: Mapping[str, str]) -> Column:
    if name == "topic_id":
        pairs = [F.lit(word) for pair in ids.items() for word in pair]
        return F.create_map(*pairs)[F.col("topic")]
    if name == "date":
        return F.coalesce(F.to_date("timestamp"), F.current_date())
    if name in made:
        return F.col(made[name])
    # What only the archive writes down.
    return F.lit(None).cast(_WHOLE[name].dataType)


def _by_topic(ranges: Iterable[Range]) -> str:
    found: dict[str, list[int]] = {}
    for each in ranges:
        found.setdefault(each.topic, []).append(each.partition)
    return json.dumps(found)


def _offsets(numbers: Iterable[tuple[Range, int]]) -> str:
    found: dict[str, dict[str, int]] = {}
    for each, number in numbers:
        found.setdefault(each.topic, {})[str(each.partition)] = number
    return json.dumps(found)
