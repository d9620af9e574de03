"""Topics as streams of Spark, and streams and tables into topics: exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import col, udf

from support.broker_process import BrokerProcess
from support.spark import run_stream, save, send, stream, table, values
from support.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTopic = Callable[..., str]


def test_a_stream_takes_what_is_there_in_bounded_batches_and_says_what_waits(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path
) -> None:
    source, target = make_topic(2), make_topic(name=f"{topic}-out")
    for number in range(2):
        send(broker, source, [b"%d-%d" % (number, each) for each in range(5)], number)
    frame = stream(spark, broker, source, startingOffsets="earliest", maxOffsetsPerTrigger=4).select("value")
    progress = run_stream(frame, broker, target, tmp_path)
    assert [each["numInputRows"] for each in progress] == [4, 4, 2]
    (first,) = progress[0]["sources"]
    assert json.loads(first["latestOffset"])[source]["ends"] == {"0": 5, "1": 5}
    assert json.loads(first["endOffset"])[source]["ends"] == {"0": 2, "1": 2}
    assert sorted(values(table(spark, broker, target))) == sorted(values(table(spark, broker, source)))


def test_a_batch_that_spark_runs_again_is_not_written_again(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path
) -> None:
    source, target = make_topic(2), make_topic(name=f"{topic}-out")
    for number in range(2):
        send(broker, source, [b"%d-%d" % (number, each) for each in range(3)], number)
    frame = stream(spark, broker, source, startingOffsets="earliest").select("value")
    run_stream(frame, broker, target, tmp_path)
    # As if the driver had been killed after the tasks' commits and before its own.
    (tmp_path / "commits" / "0").unlink()
    (tmp_path / "commits" / ".0.crc").unlink()
    send(broker, source, [b"later"])
    run_stream(frame, broker, target, tmp_path)
    assert sorted(values(table(spark, broker, target))) == sorted(values(table(spark, broker, source)))


def test_a_batch_that_was_written_in_part_is_completed(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path
) -> None:
    source, target = make_topic(2), make_topic(name=f"{topic}-out")
    send(broker, source, [b"0"], 0)
    send(broker, source, [b"1"], 1)
    marker = tmp_path / "fails"
    marker.touch()

    address = broker.kafka

    @udf("binary", useArrow=False)
    def failing(value: bytes) -> bytes:
        if value == b"1" and marker.exists():
            # Not before the other task has written its part. Imported here: Spark would send these classes along.
            from confluent_kafka import Consumer, TopicPartition

            consumer = Consumer({"bootstrap.servers": address, "group.id": "never joined"})
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                if consumer.get_watermark_offsets(TopicPartition(target, 0), cached=False)[1]:
                    break
                time.sleep(0.05)
            consumer.close()
            raise RuntimeError("as wanted")
        return bytes(value)

    frame = stream(spark, broker, source, startingOffsets="earliest").select(failing("value").alias("value"))
    with pytest.raises(StreamingQueryException, match="as wanted"):
        run_stream(frame, broker, target, tmp_path / "checkpoint")
    assert values(table(spark, broker, target)) == [b"0"]
    marker.unlink()
    run_stream(frame, broker, target, tmp_path / "checkpoint")
    assert sorted(values(table(spark, broker, target))) == [b"0", b"1"]


def test_new_partitions_join_a_stream_from_their_beginning(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path, admin: AdminClient
) -> None:
    source, target = make_topic(), make_topic(name=f"{topic}-out")
    send(broker, source, [b"a"])
    frame = stream(spark, broker, source, startingOffsets="earliest").select("value")
    run_stream(frame, broker, target, tmp_path)
    admin.create_partitions([NewPartitions(source, 2)])[source].result(30)
    send(broker, source, [b"b"], 1)
    run_stream(frame, broker, target, tmp_path)
    assert sorted(values(table(spark, broker, target))) == [b"a", b"b"]


def test_a_stream_stops_at_what_was_deleted_before_it_was_read(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path, admin: AdminClient
) -> None:
    source, target = make_topic(), make_topic(name=f"{topic}-out")
    send(broker, source, [b"a"])
    frame = stream(spark, broker, source, startingOffsets="earliest").select("value")
    run_stream(frame, broker, target, tmp_path)
    send(broker, source, [b"b", b"c"])
    (deleted,) = admin.delete_records([TopicPartition(source, 0, 2)]).values()
    deleted.result(30)
    with pytest.raises(StreamingQueryException, match="offset 1 is not there, the log holds 2 to 3"):
        run_stream(frame, broker, target, tmp_path)


def test_a_stream_notices_that_its_topic_was_made_anew(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path, admin: AdminClient
) -> None:
    source, target = make_topic(), make_topic(name=f"{topic}-out")
    send(broker, source, [b"a"])
    frame = stream(spark, broker, source, startingOffsets="earliest").select("value")
    run_stream(frame, broker, target, tmp_path)
    admin.delete_topics([source])[source].result(30)
    until(lambda: source not in admin.list_topics(timeout=10).topics, "the topic is gone")
    make_topic()
    # The numbers alone would look like one new record.
    send(broker, source, [b"b", b"c"])
    with pytest.raises(StreamingQueryException, match="was deleted and made anew"):
        run_stream(frame, broker, target, tmp_path)


def test_rows_of_a_task_that_fails_and_is_run_again_are_there_once(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str
) -> None:
    target = make_topic(2)

    @udf("string", useArrow=False)
    def failing_once(number: int) -> str:
        context = TaskContext.get()
        assert context is not None
        if number == 2500 and context.attemptNumber() == 0:
            raise RuntimeError("as wanted")
        return str(number)

    rows = spark.range(0, 3000, 1, 2).select(failing_once("id").alias("value"))
    save(rows, broker, topic=target)
    assert sorted(map(int, values(table(spark, broker, target)))) == list(range(3000))


def test_a_write_with_an_id_can_be_run_again(spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic) -> None:
    target = make_topic(2)
    rows = spark.range(0, 100, 1, 2).select(col("id").cast("string").alias("value"))
    for _ in range(2):
        save(rows, broker, topic=target, writeId=f"nightly-{target}")
    assert table(spark, broker, target).count() == 100
    others: Any = spark.range(1, 101, 1, 2).select(col("id").cast("string").alias("value"))
    with pytest.raises(Exception, match="does not give the same rows to the same task"):
        save(others, broker, topic=target, writeId=f"nightly-{target}")
    assert table(spark, broker, target).count() == 100
