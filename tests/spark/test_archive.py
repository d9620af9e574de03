"""Topics into a lake: what arrives, what is refused, who may write."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from penstock.pipeline.archive.archiver import ArchiverReplacedError
from penstock.pipeline.failure import DataLossError, PipelineError
from penstock.pipeline.lake.delta import Change
from penstock.pipeline.lake.record_table import Anchor, anchor_key, offset_key
from support.broker_process import BrokerProcess
from support.lake import archive_all, archiver_of, lake_of, lake_rows, lake_values
from support.spark import send
from support.waiting import until

MakeTopic = Callable[..., str]
DAY_MS = 86_400_000


def test_records_arrive_whole_by_topic_and_day(broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(2)
    headers = [("penstock-tags", b"a,b"), ("penstock-biz-id", b"id-1"), ("x", None)]
    send(broker, topic, [b"one"], 1, key=b"k", headers=headers, timestamp=1_700_000_000_123)
    send(broker, topic, [b"two"], 1, timestamp=1_700_000_000_123 + DAY_MS)
    (batch,) = archive_all(archiver_of(broker, tmp_path, topic))
    assert (batch.rows, batch.files, batch.lost, batch.left) == (2, 2, 0, 0)
    first, second = lake_rows(tmp_path)
    assert first["timestamp"] == datetime.fromtimestamp(1_700_000_000.123, UTC)
    assert (first["topic"], first["date"], second["date"]) == (topic, "2023-11-14", "2023-11-15")
    assert (first["partition"], first["offset"], first["key"], first["value"]) == (1, 0, b"k", b"one")
    assert [(each["key"], each["value"]) for each in first["headers"]] == headers
    assert (first["tags"], first["biz_id"], first["timestamp_type"]) == (["a", "b"], "id-1", 0)
    assert (second["headers"], second["tags"], second["biz_id"], second["due"]) == (None, None, None, None)


def test_batches_are_bounded_and_nothing_is_archived_twice(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(3)
    for number in range(3):
        send(broker, topic, [b"%d-%04d" % (number, each) for each in range(400)], number)
    batches = archive_all(archiver_of(broker, tmp_path, topic, max_offsets=500))
    assert [batch.rows for batch in batches] == [498, 498, 204]
    assert archive_all(archiver_of(broker, tmp_path, topic)) == []
    send(broker, topic, [b"2-9999"], 2)
    assert [batch.rows for batch in archive_all(archiver_of(broker, tmp_path, topic))] == [1]
    sent = [b"%d-%04d" % (number, each) for number in range(3) for each in range(400)]
    assert lake_values(tmp_path) == [*sent, b"2-9999"]


def test_only_what_was_committed_is_archived(broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic()
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": topic})
    producer.init_transactions(30)
    for word, commits in ((b"yes", True), (b"no", False), (b"also", True)):
        producer.begin_transaction()
        producer.produce(topic, word, partition=0)
        producer.flush(30)
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    archiver = archiver_of(broker, tmp_path, topic)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)
    archive_all(archiver)
    assert lake_values(tmp_path) == [b"yes", b"also"]
    producer.commit_transaction(30)
    archive_all(archiver)
    # The range ends with a marker, and the next one follows all the same.
    send(broker, topic, [b"plain"])
    archive_all(archiver)
    assert lake_values(tmp_path) == [b"yes", b"also", b"open", b"plain"]


def test_of_two_archivers_the_later_goes_on(broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic()
    send(broker, topic, [b"%03d" % number for number in range(100)])
    first = archiver_of(broker, tmp_path, topic, max_offsets=30)
    assert first.run_batch() is not None
    second = archiver_of(broker, tmp_path, topic, max_offsets=30)
    with pytest.raises(ArchiverReplacedError, match="number 2, this one is 1"):
        first.run_batch()
    archive_all(second)
    assert lake_values(tmp_path) == [b"%03d" % number for number in range(100)]


def test_an_archiver_that_is_overtaken_between_its_files_and_its_commit_adds_nothing(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    send(broker, topic, [b"%03d" % number for number in range(100)])

    def overtake(step: str) -> None:
        if step == "files":
            archive_all(archiver_of(broker, tmp_path, topic))

    slow = archiver_of(broker, tmp_path, topic, after=overtake)
    with pytest.raises(ArchiverReplacedError):
        slow.run_batch()
    assert lake_values(tmp_path) == [b"%03d" % number for number in range(100)]


def test_archivers_of_different_names_do_not_archive_the_same_twice(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, topic: str
) -> None:
    shared, own = make_topic(), make_topic(name=f"{topic}-own")
    send(broker, shared, [b"a", b"b"])
    send(broker, own, [b"c"])

    def overtake(step: str) -> None:
        if step == "files":
            archive_all(archiver_of(broker, tmp_path, shared, name="other"))

    slow = archiver_of(broker, tmp_path, shared, own, after=overtake)
    with pytest.raises(ArchiverReplacedError, match="by an archiver of another name too"):
        slow.run_batch()
    archive_all(archiver_of(broker, tmp_path, own))
    assert lake_values(tmp_path) == [b"a", b"b", b"c"]


def test_what_was_deleted_before_it_was_archived_stops_the_archive(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, admin: AdminClient
) -> None:
    topic = make_topic()
    send(broker, topic, [b"a", b"b"])
    archive_all(archiver_of(broker, tmp_path, topic))
    send(broker, topic, [b"c", b"d", b"e"])
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    deleted.result(30)
    with pytest.raises(DataLossError, match="begins at 4, but is archived up to 2 only: 2 offsets were deleted"):
        archiver_of(broker, tmp_path, topic).run_batch()
    (batch,) = archive_all(archiver_of(broker, tmp_path, topic, accepts_loss=True))
    assert (batch.rows, batch.lost) == (1, 2)
    assert lake_values(tmp_path) == [b"a", b"b", b"e"]


def test_a_log_that_was_cut_is_noticed(broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic()
    send(broker, topic, [b"a", b"b", b"c"])
    archiver = archiver_of(broker, tmp_path, topic)
    archive_all(archiver)
    lake = lake_of(tmp_path)
    (topic_id,) = {row["topic_id"] for row in lake_rows(tmp_path)}
    # As if the log had lost its last two records and got two others at their offsets: the archive had others.
    lake.commit(Change(marks={anchor_key(topic_id, 0): Anchor(2, 12345).packed(3)}), lambda: True)
    send(broker, topic, [b"d"])
    with pytest.raises(DataLossError, match="the record at offset 2 is not the one that was archived"):
        archiver.run_batch()
    # As if it had lost more than it has got since.
    lake.commit(Change(marks={offset_key(topic_id, 0): 10}), lambda: True)
    with pytest.raises(DataLossError, match="ends at 4, but is archived up to 10: its log was cut"):
        archiver.run_batch()


def test_a_topic_that_is_made_anew_is_archived_beside_the_old_one(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, admin: AdminClient
) -> None:
    topic = make_topic()
    send(broker, topic, [b"old"])
    archiver = archiver_of(broker, tmp_path, topic)
    archive_all(archiver)
    admin.delete_topics([topic])[topic].result(30)
    until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is gone")
    make_topic()
    send(broker, topic, [b"new", b"newer"])
    archive_all(archiver)
    rows = lake_rows(tmp_path)
    assert sorted(row["value"] for row in rows) == [b"new", b"newer", b"old"]
    assert len({row["topic_id"] for row in rows}) == 2


def test_the_group_is_told_how_far_the_archive_is(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, admin: AdminClient
) -> None:
    topic = make_topic(2)
    send(broker, topic, [b"a", b"b"])
    archive_all(archiver_of(broker, tmp_path, topic, name=f"of-{topic}"))
    asked = [ConsumerGroupTopicPartitions(f"penstock-of-{topic}")]
    (answer,) = admin.list_consumer_group_offsets(asked).values()
    assert [(each.partition, each.offset) for each in answer.result(30).topic_partitions] == [(0, 2)]


def test_a_lake_of_another_cluster_is_refused(
    broker: BrokerProcess, new_broker: Callable[..., BrokerProcess], make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    archiver_of(broker, tmp_path, topic)
    other = new_broker()
    with pytest.raises(PipelineError, match=r"is the archive of cluster .+, and this is cluster"):
        archiver_of(other, tmp_path, topic)


def test_columns_are_added_to_an_old_table_and_never_changed(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, admin: AdminClient
) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable

    from penstock.pipeline.lake.record_table import CLUSTER, PARTITIONED_BY, SCHEMA

    cluster = str(admin.describe_cluster().result(30).cluster_id)

    def old_table(folder: Path, schema: pa.Schema) -> None:
        DeltaTable.create(
            folder,
            schema,
            partition_by=list(PARTITIONED_BY),
            configuration={CLUSTER: cluster},
            raise_if_key_not_exists=False,
        )

    topic = make_topic()
    send(broker, topic, [b"a"], headers=[("penstock-biz-id", b"id")])
    young = {"biz_id", "due"}
    columns = [field for field in SCHEMA if field.name not in young] + [pa.field("price", pa.int64())]
    old_table(tmp_path / "old", pa.schema(columns))
    archive_all(archiver_of(broker, tmp_path / "old", topic))
    (row,) = lake_rows(tmp_path / "old")
    assert row["biz_id"] == "id"
    names = [field.name for field in DeltaTable(tmp_path / "old").schema().fields]
    assert set(names) == {*SCHEMA.names, "price"}
    wrong = [pa.field("offset", pa.string()) if field.name == "offset" else field for field in SCHEMA]
    old_table(tmp_path / "wrong", pa.schema(wrong))
    with pytest.raises(PipelineError, match=r"column offset of the lake is .*, it would have to be int64"):
        archiver_of(broker, tmp_path / "wrong", topic)


def test_records_without_a_usable_time_are_put_with_today(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(**{"message.timestamp.after.max.ms": str(2**63 - 1)})
    send(broker, topic, [b"a"], timestamp=2**50)
    before = datetime.now(UTC).date()
    archive_all(archiver_of(broker, tmp_path, topic))
    (row,) = lake_rows(tmp_path)
    assert row["timestamp"] is None
    assert before <= date.fromisoformat(row["date"]) <= datetime.now(UTC).date()


def test_files_that_nobody_committed_are_not_in_the_table(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    send(broker, topic, [b"a", b"b"])

    def die(step: str) -> None:
        raise RuntimeError(step)

    with pytest.raises(RuntimeError, match=re.escape("files")):
        archiver_of(broker, tmp_path, topic, after=die).run_batch()
    archive_all(archiver_of(broker, tmp_path, topic))
    assert len(list(tmp_path.glob("topic=*/date=*/*.parquet"))) == 2
    assert lake_values(tmp_path) == [b"a", b"b"]


def test_topics_are_told_which_group_stands_for_their_archive(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, admin: AdminClient
) -> None:
    topic = make_topic(**{"segment.bytes": "16384"})
    archiver_of(broker, tmp_path, topic, name="nightly").hold()
    asked = ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([asked])[asked].result(30)
    assert settings["penstock.archive.group"].value == "penstock-nightly"
    assert settings["segment.bytes"].value == "16384"
