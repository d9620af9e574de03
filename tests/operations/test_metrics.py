"""What a broker's /metrics shows, against what is defined and documented."""

from __future__ import annotations

import platform
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import penstock
from penstock.broker.metrics.catalogue import FAMILIES, Family, MetricKind, Unit
from support.broker_process import BrokerProcess
from support.delayed import delayed, send
from support.waiting import until
from support.wire import Wire, batch_of

BrokerFactory = Callable[..., BrokerProcess]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
_TYPE = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
_TABLE_ROW = re.compile(r"^\| `([a-z_]+)(?:\{([a-z,]+)\})?` \| (\w+) \|", re.MULTILINE)


def test_a_broker_shows_what_is_defined_and_nothing_else(broker: BrokerProcess) -> None:
    shown = dict(_TYPE.findall(broker.get("/metrics")))
    assert shown == {family.exposed: family.kind.value for family in FAMILIES}


def test_the_documentation_has_the_same_metrics_labels_and_types() -> None:
    documented = {(name, labels, kind) for name, labels, kind in _TABLE_ROW.findall(PAGE.read_text())}
    assert documented == {(family.exposed, ",".join(family.labels), family.kind.value) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family.name))
def test_names_follow_the_conventions_of_prometheus(family: Family) -> None:
    assert re.fullmatch(r"(penstock|process)(_[a-z]+)+", family.name)
    assert not family.name.endswith("_total"), "the exposition adds it"
    if family.unit in (Unit.SECONDS, Unit.TIMESTAMP):
        assert family.name.endswith("_seconds")
    if family.unit is Unit.BYTES:
        assert re.search("_bytes(_|$)", family.name)
    if family.kind is MetricKind.HISTOGRAM:
        assert family.unit is Unit.SECONDS
    assert family.documentation.endswith(".")


def test_what_runs_and_since_when_is_told(broker: BrokerProcess) -> None:
    labels = {"version": penstock.__version__, "python": platform.python_version()}
    assert broker.metric("penstock_build_info", **labels) == 1
    assert abs(time.time() - broker.metric("process_start_time_seconds")) < 3600
    assert 0 < broker.metric("penstock_disk_free_bytes") <= broker.metric("penstock_disk_size_bytes")
    until(lambda: broker.metric("penstock_event_loop_lag_seconds_count") > 0, "the event loop is watched")


def test_a_broker_that_is_alone_is_its_own_controller(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
    assert broker.metric("penstock_active_controller") == 1
    assert broker.metric("penstock_brokers", state="alive") == 1
    assert broker.metric("penstock_topics") == 1
    assert broker.metric("penstock_partitions") == broker.metric("penstock_leader_partitions") == 1
    for name in ("under_replicated", "under_min_isr", "offline", "reassigning"):
        assert broker.metric(f"penstock_{name}_partitions") == 0


def test_partitions_beyond_the_limit_have_no_series_and_are_counted(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker({"limits.partition_series": 2, "broker.default_partitions": 5})
    producer = Producer({"bootstrap.servers": broker.kafka})
    send(broker.kafka, topic, [delayed(b"later", "1h")])
    for number in range(5):
        producer.produce(topic, b"x", partition=number)
    assert producer.flush(30) == 0
    shown = broker.metrics()
    for name in ("penstock_log_size_bytes", "penstock_log_end_offset", "penstock_log_start_offset"):
        assert sum(each == name for each, _ in shown) == 2
    assert shown["penstock_partitions_left_out", ()] == 3
    assert shown["penstock_partitions", ()] == 5


def test_transactions_are_counted_from_their_beginning_to_their_end(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker({"transactions.state_partitions": 2})
    names = ("open", "committed_total", "aborted_total", "timed_out_total", "oldest_open_seconds")

    def told() -> dict[str, float]:
        return {name: broker.metric(f"penstock_transactions_{name}") for name in names}

    assert set(told().values()) == {0}
    settings = {"bootstrap.servers": broker.kafka, "transactional.id": "billing"}
    producer = Producer(settings)
    producer.init_transactions(30)

    def write() -> None:
        producer.begin_transaction()
        producer.produce(topic, b"x")
        assert producer.flush(30) == 0

    write()
    until(lambda: told()["open"] == 1, "the transaction is open")
    until(lambda: told()["oldest_open_seconds"] > 0, "it grows older")
    producer.commit_transaction(30)
    write()
    producer.abort_transaction(30)
    until(lambda: told()["open"] == 0, "both are decided")
    assert told() == dict(zip(names, (0, 1, 1, 0, 0), strict=True))
    assert broker.metric("penstock_transactional_ids") == 1
    until(lambda: broker.metric("penstock_transaction_markers_pending") == 0, "the markers are written")

    forgotten = Producer(settings | {"transactional.id": "forgotten", "transaction.timeout.ms": 1000})
    forgotten.init_transactions(30)
    forgotten.begin_transaction()
    forgotten.produce(topic, b"x")
    assert forgotten.flush(30) == 0
    until(lambda: told()["timed_out_total"] == 1, "the broker aborts what takes too long")
    assert (told()["aborted_total"], told()["open"]) == (2, 0)


def test_a_log_that_cannot_be_opened_is_counted(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"x"))
    assert broker.metric("penstock_offline_logs") == 0
    assert broker.stop() == 0
    folder = broker.data / "logs" / f"{topic}-0"
    shutil.move(folder, broker.data / "aside")
    folder.write_text("a file where a folder should be")
    broker.start()
    assert broker.metric("penstock_offline_logs") == 1
    assert broker.stop() == 0
    folder.unlink()
    shutil.move(broker.data / "aside", folder)
    broker.start()
    assert broker.metric("penstock_offline_logs") == 0


def test_committed_offsets_are_shown_beside_the_lag(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker({"groups.lag_series": 1, "broker.default_partitions": 2})
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in (0, 0, 1):
        producer.produce(topic, b"x", partition=number)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "billing"})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        labels = {"group": "billing", "topic": topic, "partition": "0"}
        assert broker.metric("penstock_group_committed_offset", **labels) == 1
        assert broker.metric("penstock_group_lag", **labels) == 1
        assert broker.metric("penstock_group_lag_left_out") == 0
        consumer.commit(offsets=[TopicPartition(topic, 1, 1)], asynchronous=False)
        assert broker.metric("penstock_group_lag_left_out") == 1
        assert sum(name == "penstock_group_lag" for name, _ in broker.metrics()) == 1
    finally:
        consumer.close()


def test_what_an_archive_does_not_have_yet_is_shown_until_the_topic_goes(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker({"log.retention_check_ms": 100})
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(topic, 1, config={"penstock.archive.group": "archive"})])[topic].result()
    with Wire(broker.address) as wire:
        for _ in range(5):
            wire.produce(topic, batch_of(b"x"))
    lag = "penstock_archive_lag_records", (("partition", "0"), ("topic", topic))
    until(lambda: broker.metrics(lag[0]).get(lag) == 5, "nothing is archived")
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "archive"})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    finally:
        consumer.close()
    until(lambda: broker.metrics(lag[0])[lag] == 2, "three of five are archived")
    admin.delete_topics([topic])[topic].result()
    until(lambda: lag not in broker.metrics(lag[0]), "the topic is gone")
