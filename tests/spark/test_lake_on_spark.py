"""Archive, compaction and replay as tasks of Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.archive.archiver import ArchiveOptions, Archiver
from penstock.pipeline.failure import DataLossError
from penstock.pipeline.lake.compaction import compact
from penstock.pipeline.lake.delta import Change, LakeLocation
from penstock.pipeline.lake.record_table import Anchor, anchor_key
from penstock.pipeline.lake.selection import Selection
from penstock.pipeline.replay.replay import Replay, ReplayOptions
from penstock.pipeline.topics.options import TopicSelection
from penstock.pipeline.workers import SparkWorkers
from support.broker_process import BrokerProcess
from support.lake import archive_all, lake_of, lake_rows, lake_values
from support.spark import send, table, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTopic = Callable[..., str]


def test_a_topic_goes_into_the_lake_and_out_again(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path
) -> None:
    source, target = make_topic(2), make_topic(2, f"{topic}-again")
    workers = SparkWorkers(spark.sparkContext)
    kafka = {"bootstrap.servers": broker.kafka}
    archiver = Archiver(ArchiveOptions(kafka, TopicSelection(topics=(source,)), LakeLocation(str(tmp_path))), workers)
    sent = [b"%05d" % number for number in range(3000)]
    for _ in range(2):
        for number in range(2):
            send(broker, source, sent, number)
        archive_all(archiver)
    assert lake_values(tmp_path) == [*sent, *sent] * 2
    assert compact(lake_of(tmp_path), workers).files_after == 1
    assert lake_values(tmp_path) == [*sent, *sent] * 2
    replay = Replay(ReplayOptions(kafka, Selection(topic=source, first=3000), target), lake_of(tmp_path), workers)
    assert sum(each.rows for each in replay.run()) == 6000
    assert values(table(spark, broker, target)) == [*sent, *sent]
    # What goes wrong in a task is told as what it is.
    (topic_id,) = {row["topic_id"] for row in lake_rows(tmp_path)}
    lake_of(tmp_path).commit(Change(marks={anchor_key(topic_id, 0): Anchor(5999, 1).packed(6000)}), lambda: True)
    send(broker, source, [b"more"])
    with pytest.raises(DataLossError, match=f"{source}-0: the record at offset 5999 is not the one that was archived"):
        archiver.run_batch()
