"""Fixed levels: one delay a partition, against a real broker."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from conftest import SHARED, BrokerFactory
from support.bridge_process import BridgeProcess, bridging
from support.bridged import Sender, collect, create_topics, values_of
from support.broker_process import BrokerProcess
from support.waiting import until

TARGET = "penstock-target"


def arguments(broker: BrokerProcess, topic: str, *more: str) -> list[str]:
    return [topic, "-b", broker.kafka, "--group", f"{topic}-bridge", *more]


def test_each_partition_waits_for_its_level_and_the_group_does_not_rebalance(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    # One without other groups: it counts the rebalances of all.
    broker = new_broker(SHARED)
    orders = f"{topic}-orders"
    create_topics(broker.kafka, {topic: 3, orders: 1})
    settings = tmp_path / "settings"
    # A member that did not poll while it waits for the last level would be thrown out.
    settings.write_text("session.timeout.ms=6000\nmax.poll.interval.ms=6000\n")
    given = arguments(broker, topic, "--levels", "1s,3s,9s", "--settings-file", str(settings))
    with bridging(tmp_path / "bridge", *given) as bridge:
        sender = Sender(broker.kafka)
        sent_ms = time.time_ns() // 1_000_000
        for partition, name in enumerate([b"one", b"three", b"nine"]):
            for number in range(3):
                value = b"%s %d" % (name, number)
                sender.send(topic, value, [(TARGET, orders.encode())], partition=partition, timestamp_ms=sent_ms)
        sender.flush()
        collect(broker.kafka, orders, bool)
        rebalances = broker.metric("penstock_group_rebalances_total")
        arrived = collect(broker.kafka, orders, lambda found: len(found) >= 9, quiet_s=1)
        assert broker.metric("penstock_group_rebalances_total") == rebalances
        assert values_of(arrived) == [b"%s %d" % (name, at) for name in (b"one", b"three", b"nine") for at in range(3)]
        for each, level_ms in zip(arrived, [1000] * 3 + [3000] * 3 + [9000] * 3, strict=True):
            assert each.headers["penstock-deliver-at"] == str(sent_ms + level_ms).encode()
            assert each.timestamp_ms >= sent_ms + level_ms
        assert "penstock_bridge_forwarded_total 9.0" in bridge.get("/metrics")
        assert bridge.get_json("/ready")["status"] == "ok"
        assert bridge.stop() == "9 received, 9 forwarded, 0 dead letters"


def test_levels_may_be_split_and_what_cannot_be_forwarded_is_a_dead_letter(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    orders = f"{topic}-orders"
    create_topics(broker.kafka, {topic: 3, orders: 1})
    with bridging(tmp_path, *arguments(broker, topic, "--levels", "1s*2,2s", "--target", orders)):
        sender = Sender(broker.kafka)
        now_ms = time.time_ns() // 1_000_000
        sender.send(topic, b"ahead", partition=0, timestamp_ms=now_ms + 3_600_000)
        sender.send(topic, b"unknown", [(TARGET, f"{topic}-missing".encode())], partition=0)
        sender.send(topic, b"a", partition=0)
        sender.send(topic, b"b", partition=1)
        sender.send(topic, b"c", partition=2)
        sender.flush()
        arrived = collect(broker.kafka, orders, lambda found: len(found) >= 3, quiet_s=1)
        assert sorted(values_of(arrived)) == [b"a", b"b", b"c"]
        letters = collect(broker.kafka, f"{topic}-bridge.dead", lambda found: len(found) >= 2)
        reasons = {each.value: (each.headers["penstock-error"] or b"").decode() for each in letters}
        assert "in the future" in reasons[b"ahead"]
        assert reasons[b"unknown"] == f"topic {topic}-missing does not exist"


def test_a_killed_bridge_is_replaced_and_nothing_is_lost_or_repeated(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    orders = f"{topic}-orders"
    create_topics(broker.kafka, {topic: 4, orders: 2})
    settings = tmp_path / "settings"
    settings.write_text("session.timeout.ms=6000\n")
    given = arguments(broker, topic, "--levels", "1s*4", "--target", orders, "--settings-file", str(settings))
    bridges = [BridgeProcess(tmp_path / f"{number}", *given) for number in (1, 2)]
    try:
        for bridge in bridges:
            bridge.start()
        sender = Sender(broker.kafka)
        for number in range(60):
            sender.send(topic, b"%d" % number, partition=number % 4)
        sender.flush()
        collect(broker.kafka, orders, bool)
        bridges[0].kill()
        for number in range(60, 120):
            sender.send(topic, b"%d" % number, partition=number % 4)
        sender.flush()
        arrived = collect(
            broker.kafka, orders, lambda found: len(set(values_of(found))) >= 120, patience_s=60, quiet_s=2
        )
        assert sorted(map(int, values_of(arrived))) == list(range(120))
        for each in arrived:
            assert each.timestamp_ms >= int(each.headers["penstock-deliver-at"] or b"")
    finally:
        for bridge in bridges:
            bridge.kill()


def test_partitions_that_wait_go_on_waiting_when_they_come_back_from_another_bridge(
    broker: BrokerProcess, admin: AdminClient, topic: str, tmp_path: Path
) -> None:
    orders, group = f"{topic}-orders", f"{topic}-bridge"
    create_topics(broker.kafka, {topic: 4, orders: 1})

    def members() -> list[int]:
        described = admin.describe_consumer_groups([group])[group].result(30)
        return sorted(len(member.assignment.topic_partitions) for member in described.members)

    given = arguments(broker, topic, "--levels", "12s*4", "--target", orders)
    with bridging(tmp_path / "1", *given) as first:
        sender = Sender(broker.kafka)
        for number in range(8):
            sender.send(topic, b"%d" % number, partition=number % 4)
        sender.flush()
        until(lambda: members() == [4], "the first bridge has all partitions")
        with bridging(tmp_path / "2", *given) as second:
            until(lambda: members() == [2, 2], "the second bridge has two of them")
            second.stop()
        arrived = collect(broker.kafka, orders, lambda found: len(found) >= 8, quiet_s=1)
        assert sorted(values_of(arrived)) == [b"%d" % number for number in range(8)]
        for each in arrived:
            assert each.timestamp_ms >= int(each.headers["penstock-deliver-at"] or b"")
        assert "8 forwarded" in first.stop()


def test_a_message_that_is_deleted_while_it_waits_does_not_block_its_partition(
    broker: BrokerProcess, admin: AdminClient, topic: str, tmp_path: Path
) -> None:
    orders = f"{topic}-orders"
    create_topics(broker.kafka, {topic: 1, orders: 1})
    with bridging(tmp_path, *arguments(broker, topic, "--levels", "6s", "--target", orders)) as bridge:
        sender = Sender(broker.kafka)
        sender.send(topic, b"at once", partition=0, timestamp_ms=1)
        sender.send(topic, b"deleted", partition=0)
        sender.send(topic, b"left", partition=0)
        sender.flush()
        collect(broker.kafka, orders, bool)
        place = TopicPartition(topic, 0, 2)
        admin.delete_records([place])[place].result(30)
        arrived = collect(broker.kafka, orders, lambda found: len(found) >= 2, quiet_s=1)
        assert values_of(arrived) == [b"at once", b"left"]
        assert "were deleted while they waited" in bridge.log


def test_a_topic_with_another_number_of_partitions_is_refused(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    create_topics(broker.kafka, {topic: 2})
    bridge = BridgeProcess(tmp_path, *arguments(broker, topic, "--levels", "5")).launch()
    until(lambda: not bridge.is_alive, "the bridge refuses to start")
    assert "has 2 partitions, and there are 5 levels" in bridge.log
