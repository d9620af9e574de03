"""Topics as tables of Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException

from support.broker_process import BrokerProcess
from support.spark import save, send, table, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTopic = Callable[..., str]


def test_every_part_of_a_record_is_a_column(spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic) -> None:
    topic = make_topic()
    headers = [
        ("h", b"\xff"),
        ("none", None),
        ("penstock-tags", b"red, blue"),
        ("penstock-tags", b"blue,big"),
        ("penstock-biz-id", b"order-1"),
        ("penstock-deliver-at", b"1700000000123"),
    ]
    send(broker, topic, [b"v"], key=b"k", headers=headers, timestamp=1_600_000_000_456)
    send(broker, topic, [b""])
    first, second = (
        table(spark, broker, topic, includeHeaders="true", decode="due,tags,biz_id").orderBy("offset").collect()
    )
    assert (first.key, first.value, first.topic, first.partition, first.offset) == (b"k", b"v", topic, 0, 0)
    due = datetime.fromtimestamp(1_700_000_000.123, UTC).replace(tzinfo=None)
    assert first.timestampType == 0
    # A due time that is over is the time at which the broker delivered: now.
    assert first.due == due
    assert [(each.key, each.value) for each in first.headers] == headers
    assert (first.tags, first.biz_id) == (["red", "blue", "big"], "order-1")
    assert (second.key, second.value, second.headers, second.tags, second.due) == (None, b"", None, None, None)


def test_only_the_columns_of_a_given_schema_are_made(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    send(broker, topic, [b"a", b"b"])
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", broker.kafka).option("subscribe", topic)
    frame = reader.schema("offset bigint, value binary").load()
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(0, b"a"), (1, b"b")]
    with pytest.raises(PySparkException, match="there is no column price"):
        reader.schema("price int").load().collect()
    with pytest.raises(PySparkException, match="offset is a bigint"):
        reader.schema("offset int").load().collect()


def test_starts_and_ends_are_those_asked_for(spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    for number in range(10):
        send(broker, topic, [b"%d" % number], number % 2, timestamp=1_700_000_000_000 + number)
    starting, ending = json.dumps({topic: {"0": 1, "1": -2}}), json.dumps({topic: {"0": 3, "1": -1}})
    assert values(table(spark, broker, topic, startingOffsets=starting, endingOffsets=ending)) == [
        b"2", b"4", b"1", b"3", b"5", b"7", b"9",
    ]  # fmt: skip
    since = 1_700_000_000_000 + 6
    assert values(table(spark, broker, topic, startingTimestamp=since)) == [b"6", b"8", b"7", b"9"]
    times = json.dumps({topic: {"0": since, "1": since + 2}})
    assert values(table(spark, broker, topic, startingOffsetsByTimestamp=times)) == [b"6", b"8", b"9"]
    assert values(table(spark, broker, topic, endingTimestamp=since)) == [b"0", b"2", b"4", b"1", b"3", b"5"]
    some = {"assign": json.dumps({topic: [1]})}, {"subscribePattern": f"{topic[:-1]}."}
    chosen, matching = (
        spark.read.format("penstock").option("kafka.bootstrap.servers", broker.kafka).options(**each).load()
        for each in some
    )
    assert values(chosen) == [b"1", b"3", b"5", b"7", b"9"]
    assert matching.count() == 10


def test_long_ranges_are_split_into_as_many_tasks_as_wanted(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    sent = [b"%d" % number for number in range(1000)]
    send(broker, topic, sent)
    send(broker, topic, [b"alone"], 1)
    frame = table(spark, broker, topic, minPartitions=5)
    assert frame.rdd.getNumPartitions() >= 5
    assert values(frame) == [*sent, b"alone"]


def test_filters_narrow_what_is_fetched_by_a_frame_that_is_used_once(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    for number in range(2):
        send(broker, topic, [b"%d" % each for each in range(500)], number)
    wanted = "partition = 1 and offset >= 100 and offset < 103"
    frame = table(spark, broker, topic, pushFilters="true").where(wanted)
    assert frame.rdd.getNumPartitions() == 1
    assert values(frame) == [b"100", b"101", b"102"]
    unpushed = table(spark, broker, topic)
    assert values(unpushed.where(wanted)) == [b"100", b"101", b"102"]
    # Without the option one frame can be asked many things.
    assert unpushed.count() == 1000


def test_what_was_deleted_before_it_was_read_is_an_error(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, admin: AdminClient
) -> None:
    topic = make_topic()
    send(broker, topic, [b"%d" % number for number in range(10)])
    starting = json.dumps({topic: {"0": 2}})
    planned = table(spark, broker, topic)
    assert planned.rdd.getNumPartitions() == 1
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 5)]).values()
    deleted.result(30)
    with pytest.raises(PySparkException, match="offset 2 is not there, the log holds 5 to 10"):
        table(spark, broker, topic, startingOffsets=starting).collect()
    with pytest.raises(PySparkException, match="offset 0 is not there, the log holds 5 to 10"):
        planned.collect()
    kept = table(spark, broker, topic, startingOffsets=starting, failOnDataLoss="false")
    assert values(kept) == [b"5", b"6", b"7", b"8", b"9"]


def test_a_table_ends_at_the_last_stable_offset(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": topic})
    producer.init_transactions(30)
    for word, commits in ((b"yes", True), (b"no", False)):
        producer.begin_transaction()
        producer.produce(topic, word, partition=0)
        producer.flush(30)
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)
    assert values(table(spark, broker, topic)) == [b"yes"]
    uncommitted = table(spark, broker, topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert values(uncommitted) == [b"yes", b"no", b"open"]
    producer.abort_transaction(30)


def test_a_view_is_read_like_any_topic(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str
) -> None:
    base = make_topic()
    make_topic(-1, f"{topic}-red", **{"penstock.view.of": base, "penstock.view.tags": "red"})
    for number in range(20):
        tag = b"red" if number % 5 == 0 else b"blue"
        send(broker, base, [b"%d" % number], headers=[("penstock-tags", tag)])
    rows = table(spark, broker, f"{topic}-red", decode="tags").orderBy("offset").collect()
    assert [(row.offset, row.value, row.tags) for row in rows] == [
        (number, b"%d" % number, ["red"]) for number in (0, 5, 10, 15)
    ]


def test_rows_are_written_with_everything_a_record_has(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str
) -> None:
    one, other = make_topic(2, f"{topic}-1"), make_topic(2, f"{topic}-2")
    rows = (
        f"select '{one}' topic, 'a' value, 'k' key, 1 partition, timestamp'2026-01-02 03:04:05.678' timestamp,"
        " array(named_struct('key', 'h', 'value', cast('x' as binary))) headers, array('red', 'big') tags, 'id' biz_id"
        f" union all select '{other}', null, 'k', 0, null, null, null, null"
    )
    save(spark.sql(rows), broker)
    (first,) = table(spark, broker, one, includeHeaders="true").collect()
    assert (first.value, first.key, first.partition) == (b"a", b"k", 1)
    assert first.timestamp == datetime(2026, 1, 2, 3, 4, 5, 678_000)
    assert [(each.key, each.value) for each in first.headers] == [
        ("h", b"x"), ("penstock-tags", b"red,big"), ("penstock-biz-id", b"id"),
    ]  # fmt: skip
    (second,) = table(spark, broker, other, includeHeaders="true").collect()
    assert (second.value, second.key, second.headers) == (None, b"k", None)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic"),
        ({"subscribe": "x", "maxoffset": "1"}, "maxoffset: there is no such option"),
        ({"subscribe": "x", "startingOffsets": "{"}, "startingOffsets '{': is not JSON"),
    ],
)
def test_a_bad_option_of_a_query_is_named(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], complaint: str
) -> None:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", broker.kafka)
    with pytest.raises(PySparkException, match=complaint):
        reader.options(**options).load().collect()


def test_a_frame_that_cannot_be_written_is_refused(spark: SparkSession, broker: BrokerProcess) -> None:
    for columns, complaint in (
        ("'a' value", "neither an option topic nor a column topic"),
        ("'t' topic", "there is no column value"),
        ("1 value, 't' topic", "column value is int"),
        ("'a' value, 1 price, 't' topic", "column price cannot be written"),
    ):
        with pytest.raises(PySparkException, match=complaint):
            save(spark.sql(f"select {columns}"), broker)
