"""Brokers whose wall clock is set while they run, as clients see them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.cluster import Cluster
from support.delayed import Arrivals, Sending, delayed, send
from support.shifted_clock import ShiftedClocks
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

HOUR_MS = 3_600_000
SETTINGS = {"cluster.lease_ms": 2000, "cluster.lag_time_max_ms": 2000, "topic.min.insync.replicas": 2}


@pytest.fixture
def clocks(tmp_path: Path) -> ShiftedClocks:
    return ShiftedClocks(tmp_path)


@pytest.fixture
def broker(tmp_path: Path, clocks: ShiftedClocks) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "broker", env=clocks.environment("broker"))
    try:
        yield process.start()
        assert process.stop() == 0
        assert "Traceback" not in process.log, process.log_tail
    finally:
        process.kill()


def create(kafka: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_S)


@pytest.mark.parametrize("between", ["goes on", "stops", "is killed"])
def test_a_message_sent_after_the_clock_came_back_is_not_held(
    broker: BrokerProcess, clocks: ShiftedClocks, between: str
) -> None:
    send(broker.kafka, "t", [delayed(b"%d" % number, f"{number + 1}m") for number in range(50)])
    clocks.set("broker", HOUR_MS)
    with Arrivals(broker.kafka, "t") as arrivals:
        arrivals.until(50)
    if between == "stops":
        assert broker.stop() == 0
    elif between == "is killed":
        broker.kill()
    clocks.set("broker", 0)
    if between != "goes on":
        broker.start()
    send(broker.kafka, "t", [delayed(b"new", "500"), delayed(b"newer", "900")])
    with Arrivals(broker.kafka, "t") as arrivals:
        arrivals.until_seen(b"newer")
    assert arrivals.values == [*(b"%d" % number for number in range(50)), b"new", b"newer"]
    assert "ahead of this broker's clock" in broker.log
    assert broker.metric("penstock_delayed_mark_resets_total") == 1


def test_a_schedule_goes_on_when_the_clock_is_back_though_nobody_sends(
    broker: BrokerProcess, clocks: ShiftedClocks
) -> None:
    send(broker.kafka, "t", [Sending(b"tick", [("penstock-schedule", b"every 1s")]), delayed(b"early", "30m")])
    clocks.set("broker", HOUR_MS)
    with Arrivals(broker.kafka, "t") as arrivals:
        arrivals.until_true(lambda: b"early" in arrivals.values, "the message")
        until(lambda: broker.metric("penstock_clock_set_ahead_total") == 1, "the broker knows")
        clocks.set("broker", 0)
        until(lambda: broker.metric("penstock_clock_set_back_total") == 1, "the broker knows")
        seen = len(arrivals.all)
        arrivals.until(seen + 3)


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
def test_groups_transactions_and_producers_go_on_across_a_jump(
    broker: BrokerProcess, clocks: ShiftedClocks, ahead_ms: int
) -> None:
    revoked: list[object] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "g",
            "session.timeout.ms": 6000,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    create(broker.kafka, "t")
    consumer.subscribe(["t"], on_revoke=lambda _, partitions: revoked.append(partitions))
    producer = Producer(
        {"bootstrap.servers": broker.kafka, "transactional.id": "x", "transaction.timeout.ms": 60_000, "linger.ms": 1}
    )
    producer.init_transactions(PATIENCE_S)
    values: list[bytes | None] = []

    def read(count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(values) < count:
            assert time.monotonic() < deadline, values
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None
                values.append(message.value())

    for number, jump_ms in enumerate([0, ahead_ms, 0]):
        producer.begin_transaction()
        producer.produce("t", b"before %d" % number, partition=0)
        producer.flush(PATIENCE_S)
        clocks.set("broker", jump_ms)
        producer.produce("t", b"after %d" % number, partition=0)
        # Longer than the coordinators take to look for what has timed out.
        deadline = time.monotonic() + 2.5
        while time.monotonic() < deadline:
            assert consumer.poll(0.1) is None
        producer.commit_transaction(PATIENCE_S)
        read(2 * number + 2)
    assert values == [b"%s %d" % (word, number) for number in range(3) for word in (b"before", b"after")]
    assert revoked == []
    consumer.close()


def test_a_transaction_that_was_left_open_while_the_clock_was_ahead_ends_in_time(
    broker: BrokerProcess, clocks: ShiftedClocks
) -> None:
    clocks.set("broker", HOUR_MS)
    broker.restart()
    create(broker.kafka, "t")
    producer = Producer(
        {"bootstrap.servers": broker.kafka, "transactional.id": "x", "transaction.timeout.ms": 2000, "linger.ms": 1}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", b"never committed", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    broker.kill()
    clocks.set("broker", 0)
    broker.start()
    send(broker.kafka, "t", [Sending(b"plain")])
    with Arrivals(broker.kafka, "t") as arrivals:
        arrivals.until(1)
    assert arrivals.values == [b"plain"]


def test_a_leader_takes_over_from_one_whose_clock_was_ahead(
    zookeeper: ZooKeeperProcess, tmp_path: Path, clocks: ShiftedClocks
) -> None:
    def environment(number: int) -> Mapping[str, str]:
        return clocks.environment(f"broker-{number}")

    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings=SETTINGS, env=environment) as cluster:
        create(cluster.kafka, "t")
        cluster.wait_until_whole()
        first = cluster.leader("t")
        named = [delayed(b"%d" % number, f"{number + 1}m", timer_id=f"N{number}") for number in range(50)]
        send(cluster.kafka, "t", [*named, delayed(b"far", "3h")], acks=-1)
        clocks.set(f"broker-{first}", HOUR_MS)
        with Arrivals(cluster.kafka, "t") as arrivals:
            arrivals.until(50)
        cluster.kill(first)
        until(lambda: cluster.leader("t") != first, "another leads")
        send(cluster.kafka, "t", [delayed(b"new", "500", timer_id="N7")], acks=-1)
        with Arrivals(cluster.kafka, "t") as arrivals:
            arrivals.until_seen(b"new")
        # The old leader follows, has taken the reset in, and leads again with its clock put right.
        second = cluster.leader("t")
        clocks.set(f"broker-{first}", 0)
        cluster.start_again(first)
        cluster.wait_until_whole()
        cluster.stop(second)
        until(lambda: cluster.leader("t") != second, "another leads")
        send(cluster.kafka, "t", [delayed(b"end", "500")], acks=-1)
        with Arrivals(cluster.kafka, "t") as arrivals:
            arrivals.until_seen(b"end")
        assert Counter(arrivals.values) == Counter([b"%d" % number for number in range(50)] + [b"new", b"end"])
        assert "ahead of this broker's clock" in cluster.brokers[second].log
        assert all("Traceback" not in broker.log for broker in cluster.brokers.values())
