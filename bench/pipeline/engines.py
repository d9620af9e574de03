"""The two ways through Spark that are compared: ours, and that of Spark's own Kafka connector."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from bench.client.driver import DriverError
from penstock.pipeline.archive.archiver import ArchiveOptions, Archiver
from penstock.pipeline.lake.delta import LakeLocation
from penstock.pipeline.topics.options import TopicSelection
from penstock.pipeline.workers import SparkWorkers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CODEC = "zstd"

_PATIENCE_S = 30.0
_LOOK_S = 0.05


class Engine(Protocol):
    """Reads a topic, or brings it to disk; gives the seconds that it took."""

    def read_s(self, topic: str, rows: int) -> float: ...

    def keep_s(self, topic: str, rows: int) -> float: ...


class OurSource:
    """`format("penstock")`, and the archive into a lake."""

    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        self._spark = spark
        self._address = address
        self._folder = folder

    def frame(self, topic: str) -> DataFrame:
        return _frame(self._spark, "penstock", self._address, topic)

    def read_s(self, topic: str, rows: int) -> float:
        return _timed(lambda: _drain(self.frame(topic)))

    def keep_s(self, topic: str, rows: int) -> float:
        """From nothing to a lake with all of it, committed."""
        began = time.monotonic()
        with self.archiving(topic) as archive:
            archive.take(rows)
            return time.monotonic() - began

    @contextmanager
    def archiving(self, topic: str) -> Iterator[RunningArchive]:
        """An archive of its own, for as long as it is wanted."""
        location = self._folder / f"lake-{uuid4().hex[:8]}"
        options = ArchiveOptions(
            {"bootstrap.servers": self._address}, TopicSelection(topics=(topic,)), LakeLocation(str(location))
        )
        try:
            yield RunningArchive(Archiver(options, SparkWorkers(self._spark.sparkContext)), topic)
        finally:
            shutil.rmtree(location, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Taken:
    """What an archive did with messages."""

    seconds: float
    most_left: int
    """Messages that were there when a batch was planned, and had to wait for the next."""


class RunningArchive:
    """One that takes what comes."""

    def __init__(self, archiver: Archiver, topic: str) -> None:
        self._archiver = archiver
        self._topic = topic

    def take(self, rows: int) -> Taken:
        """Until it has so many more."""
        began = moved = time.monotonic()
        kept = most_left = 0
        while kept < rows:
            batch = self._archiver.run_batch()
            if batch is not None:
                kept, moved, most_left = kept + batch.rows, time.monotonic(), max(most_left, batch.left)
            elif time.monotonic() - moved > _PATIENCE_S:
                break
            else:
                time.sleep(_LOOK_S)
        _require(kept, rows, self._topic)
        return Taken(time.monotonic() - began, most_left)


class TheirSource:
    """`format("kafka")`, and Parquet files with the same codec."""

    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        self._spark = spark
        self._address = address
        self._folder = folder

    def frame(self, topic: str) -> DataFrame:
        return _frame(self._spark, "kafka", self._address, topic)

    def read_s(self, topic: str, rows: int) -> float:
        return _timed(lambda: _drain(self.frame(topic)))

    def keep_s(self, topic: str, rows: int) -> float:
        location = self._folder / f"parquet-{uuid4().hex[:8]}"
        try:
            frame = _frame(self._spark, "kafka", self._address, topic, includeHeaders="true")
            took = _timed(lambda: frame.write.option("compression", CODEC).parquet(str(location)))
            _require(self._spark.read.parquet(str(location)).count(), rows, topic)
            return took
        finally:
            shutil.rmtree(location, ignore_errors=True)


def _frame(spark: SparkSession, form: str, address: str, topic: str, **more: str) -> DataFrame:
    reader = spark.read.format(form).option("kafka.bootstrap.servers", address).option("subscribe", topic)
    return reader.options(**more).load()


def _drain(frame: DataFrame) -> None:
    """Every row with all its columns goes to where nothing is done with it."""
    frame.write.format("noop").mode("overwrite").save()


def _timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _require(found: int, wanted: int, topic: str) -> None:
    if found != wanted:
        raise DriverError(f"{topic}: {found:,} rows arrived of {wanted:,}")
