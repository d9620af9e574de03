"""Lake and live topics as one table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.pipeline.failure import DataLossError, PipelineError
from penstock.pipeline.lake.delta import LakeLocation
from penstock.pipeline.querying.history import TimeWindow
from support.broker_process import BrokerProcess
from support.lake import archive_all, archiver_of, lake_of
from support.spark import send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.querying.sql import Tables

MakeTopic = Callable[..., str]
Query = Callable[..., "DataFrame"]
DAY_MS = 86_400_000
THEN_MS = 1_700_000_000_000


def tables_of(
    spark: SparkSession,
    broker: BrokerProcess | None,
    folder: Path | None,
    window: TimeWindow | None = None,
    **more: Any,
) -> Tables:
    from penstock.pipeline.querying.frames import HistoryReader
    from penstock.pipeline.querying.history import open_history
    from penstock.pipeline.querying.sql import Tables

    location = None if folder is None else LakeLocation(str(folder))
    kafka = None if broker is None else {"bootstrap.servers": broker.kafka}
    return Tables(
        spark, open_history(location, kafka, **more), HistoryReader(spark, location, kafka), window or TimeWindow()
    )


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.collect()]


def scans(frame: DataFrame) -> list[dict[str, int]]:
    """What the scans of files have measured while the frame was collected."""
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    found = []
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if node.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
            node = node.executedPlan()
        if node.getClass().getSimpleName().endswith("QueryStageExec"):
            node = node.plan()
        metrics = node.metrics()
        if metrics.contains("numFiles"):
            found.append({name: metrics.apply(name).value() for name in ("numFiles", "numOutputRows")})
        children = node.children()
        waiting += [children.apply(number) for number in range(children.size())]
    return found


def test_lake_and_live_are_one_table_without_gap_or_repeat(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, admin: AdminClient
) -> None:
    topic = make_topic(2)
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": topic})
    producer.init_transactions(30)
    sent = []
    for round_ in range(4):
        producer.begin_transaction()
        for number in range(50):
            value = b"%d-%02d" % (round_, number)
            producer.produce(topic, value, key=b"k", partition=number % 2, headers=[("penstock-biz-id", value)])
            if round_ != 1:
                sent.append(value)
        if round_ == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
        if round_ == 2:
            archive_all(archiver_of(broker, tmp_path, topic))
    # What is archived is gone from the brokers: only both together have everything.
    for partition in (0, 1):
        (deleted,) = admin.delete_records([TopicPartition(topic, partition, 40)]).values()
        deleted.result(30)
    tables = tables_of(spark, broker, tmp_path)
    whole = tables.query(f"select value from `{topic}` order by value")
    assert values(whole) == sorted(sent)
    # Archiving goes on meanwhile: what was planned stays as it was planned.
    send(broker, topic, [b"later"])
    archive_all(archiver_of(broker, tmp_path, topic))
    assert values(whole) == sorted(sent)
    assert values(tables_of(spark, broker, tmp_path).query(f"select value from `{topic}` order by value")) == [
        *sorted(sent),
        b"later",
    ]
    rows = tables.query(f"select * from `{topic}` where biz_id in ('0-00', '3-00') order by value").collect()
    assert [(row.topic, row.partition, bytes(row.key), row.timestamp_type) for row in rows] == [(topic, 0, b"k", 0)] * 2
    assert len({row.topic_id for row in rows}) == 1
    assert {row.date for row in rows} == {row.timestamp.astimezone(UTC).date() for row in rows}


def test_each_side_can_be_read_alone(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    send(broker, topic, [b"a", b"b"])
    archive_all(archiver_of(broker, tmp_path, topic))
    send(broker, topic, [b"c"])
    query = f"select value from `{topic}` order by offset"
    assert values(tables_of(spark, None, tmp_path).query(query)) == [b"a", b"b"]
    assert values(tables_of(spark, broker, None).query(query)) == [b"a", b"b", b"c"]


def test_names_are_quoted_and_wrong_ones_are_told(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str
) -> None:
    dotted = make_topic(name=f"{topic}.eu")
    send(broker, dotted, [b"x"])
    tables = tables_of(spark, broker, None)
    assert values(tables.query(f"with every as (select * from `*`) select value from every where topic = '{dotted}'"))
    assert values(tables.query(f"select a.value from `{dotted}` a join `{dotted}` b using (offset)")) == [b"x"]
    make_topic(name="plain.dots")
    with pytest.raises(PipelineError, match=r"has to be quoted: `plain\.dots`"):
        tables.query("select * from plain.dots")
    with pytest.raises(PipelineError, match=rf"there is no topic {topic}.ev; did you mean `{dotted}`"):
        tables.query(f"select * from `{topic}.ev`")
    with pytest.raises(PipelineError, match=r"cannot be understood: .*PARSE_SYNTAX_ERROR"):
        tables.query("selec * from x")
    with pytest.raises(PipelineError, match=r"cannot be answered: .*UNRESOLVED_COLUMN.*nothing"):
        tables.query(f"select nothing from `{dotted}`")


def test_what_nobody_has_any_more_is_an_error(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, admin: AdminClient
) -> None:
    topic = make_topic()
    send(broker, topic, [b"a", b"b"])
    archive_all(archiver_of(broker, tmp_path, topic))
    send(broker, topic, [b"c", b"d", b"e"])
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    deleted.result(30)
    query = f"select value from `{topic}` order by offset"
    with pytest.raises(DataLossError, match="begins at 4, but is archived up to 2 only: 2 offsets are nowhere"):
        tables_of(spark, broker, tmp_path).query(query)
    assert values(tables_of(spark, broker, tmp_path, accepts_loss=True).query(query)) == [b"a", b"b", b"e"]


def test_a_lake_of_another_cluster_is_no_history_of_this_one(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, new_broker: Callable[..., Any]
) -> None:
    topic = make_topic()
    send(broker, topic, [b"a"])
    archive_all(archiver_of(broker, tmp_path, topic))
    with pytest.raises(PipelineError, match="their records are not one history"):
        tables_of(spark, new_broker(), tmp_path)


def test_a_biz_id_is_found_without_reading_the_rest(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, topic: str
) -> None:
    wanted, other = make_topic(), make_topic(name=f"{topic}-other")
    for name in (wanted, other):
        # Random ids: every file has the same range of them, and only its bloom filter tells that it lacks one.
        for day in range(4):
            ids = [f"{number * 7919 % 1000:03d}-{day}" for number in range(200)]
            producer = Producer({"bootstrap.servers": broker.kafka})
            for each in ids:
                headers: list[tuple[str, str | bytes | None]] = [("penstock-biz-id", each.encode())]
                producer.produce(name, each.encode(), partition=0, headers=headers, timestamp=THEN_MS + day * DAY_MS)
            producer.flush(30)
            archive_all(archiver_of(broker, tmp_path, name))
    assert len(lake_of(tmp_path).files()) == 8
    tables = tables_of(spark, None, tmp_path)
    found = tables.query(f"select value from `{wanted}` where biz_id = '919-2'")
    # Files of another topic are not even listed; of the four that are, the rows of one are read.
    assert scans(found) == [{"numFiles": 4, "numOutputRows": 200}]
    assert values(found) == [b"919-2"]
    everywhere = tables.query("select topic from `*` where biz_id = '919-2'")
    assert scans(everywhere) == [{"numFiles": 8, "numOutputRows": 400}]
    assert {row.topic for row in everywhere.collect()} == {wanted, other}
    nowhere = tables.query(f"select value from `{wanted}` where biz_id = '919-9'")
    assert scans(nowhere) == [{"numFiles": 4, "numOutputRows": 0}]
    dated = tables.query(f"select value from `{wanted}` where date = '2023-11-15'")
    assert scans(dated) == [{"numFiles": 1, "numOutputRows": 200}]


def test_a_window_leaves_out_files_and_offsets(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    for day in range(3):
        send(broker, topic, [b"%d" % day], timestamp=THEN_MS + day * DAY_MS)
    archive_all(archiver_of(broker, tmp_path, topic))
    for day in range(3, 6):
        send(broker, topic, [b"%d" % day], timestamp=THEN_MS + day * DAY_MS)
    window = TimeWindow(*(datetime.fromtimestamp((THEN_MS + day * DAY_MS) / 1000, UTC) for day in (2, 5)))
    found = tables_of(spark, broker, tmp_path, window).query(f"select value from `{topic}` order by offset")
    assert [each["numFiles"] for each in scans(found)] == [1]
    assert values(found) == [b"2", b"3", b"4"]


def test_a_view_is_a_table_and_its_records_are_not_counted_twice(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str
) -> None:
    whole = make_topic()
    view = make_topic(name=f"{topic}-view", **{"penstock.view.of": whole, "penstock.view.tags": "a"})
    for tag in (b"a", b"b", b"a"):
        send(broker, whole, [tag], headers=[("penstock-tags", tag)])
    tables = tables_of(spark, broker, None)
    assert values(tables.query(f"select value from `{view}` order by offset")) == [b"a", b"a"]
    every = tables.query(f"select value from `*` where topic like '{topic}%' order by offset")
    assert values(every) == [b"a", b"b", b"a"]
