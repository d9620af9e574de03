"""Lakes without Spark: an archiver whose tasks run in this process, and what is in a lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from penstock.pipeline.archive.archiver import ArchiveOptions, Archiver, Batch
from penstock.pipeline.lake.delta import Lake, LakeLocation, open_lake
from penstock.pipeline.topics.options import TopicSelection
from support.broker_process import BrokerProcess

Item = TypeVar("Item")
Result = TypeVar("Result")


class HereWorkers:
    """One item after the other, in this process."""

    parallelism = 3

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return [function(item) for item in items]


def archiver_of(
    broker: BrokerProcess, folder: Path, *topics: str, after: Callable[[str], None] | None = None, **more: Any
) -> Archiver:
    options = ArchiveOptions(
        {"bootstrap.servers": broker.kafka}, TopicSelection(topics=topics), LakeLocation(str(folder)), **more
    )
    return Archiver(options, HereWorkers(), after)


def archive_all(archiver: Archiver) -> list[Batch]:
    batches = []
    while (batch := archiver.run_batch()) is not None:
        batches.append(batch)
    return batches


def lake_rows(folder: Path) -> list[dict[str, Any]]:
    """All rows, by topic, partition and offset; each is there once."""
    lake = open_lake(LakeLocation(str(folder)))
    rows = [
        row | {"topic": file.topic, "date": file.date}
        for file in lake.files()
        for row in pq.ParquetFile(folder / file.path).read().to_pylist()
    ]
    counted = Counter((row["topic_id"], row["partition"], row["offset"]) for row in rows)
    doubled = [location for location, count in counted.items() if count > 1]
    assert not doubled, f"{len(doubled)} rows are doubled, such as {doubled[0]}"
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def lake_values(folder: Path) -> list[bytes]:
    return [row["value"] for row in lake_rows(folder)]


def lake_of(folder: Path) -> Lake:
    return open_lake(LakeLocation(str(folder)))
