"""Any delay: intake topic, database, sender; against a real broker and real databases."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.bridge_process import BridgeProcess, bridging
from support.bridged import PREFIXED, Arrived, Sender, asking, collect, create_topics, values_of
from support.broker_process import BrokerProcess
from support.programs import PENSTOCK, run
from support.stores import DATABASES, NewDatabase
from support.waiting import until


def has_at_least(count: int, found: list[Arrived]) -> bool:
    return len(found) >= count


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def bridge_arguments(broker: BrokerProcess, topic: str, *more: str) -> list[str]:
    return [topic, "-b", broker.kafka, "--group", f"{topic}-bridge", "--lease", "2s", *PREFIXED, *more]


@pytest.mark.parametrize("kind", DATABASES)
@pytest.mark.parametrize("plan", ["single", "days", "turns"])
def test_messages_arrive_once_in_due_order_and_never_early(
    broker: BrokerProcess, topic: str, new_database: NewDatabase, tmp_path: Path, kind: str, plan: str
) -> None:
    orders = f"{topic}-orders"
    create_topics(broker.kafka, {topic: 2, orders: 1})
    arguments = bridge_arguments(broker, topic, "--plan", plan, "--batch", "7")
    with bridging(tmp_path / "bridge", *arguments, database=new_database(kind)) as bridge:
        sender = Sender(broker.kafka)
        instant = now_ms() + 3000
        for number in range(20):
            # All at one instant: more than a page.
            sender.send(topic, b"tie %d" % number, asking(orders, deliver_at=str(instant)), partition=0)
        sender.send(topic, b"last", asking(orders, delay="5s"), key=b"k", partition=1)
        sender.send(topic, b"past", asking(orders, deliver_at="1"), partition=1)
        sender.send(topic, b"plain", asking(orders), partition=1)
        sender.flush()
        arrived = collect(broker.kafka, orders, lambda found: len(found) >= 23, quiet_s=1)
        ties = [value for value in values_of(arrived) if value.startswith(b"tie")]
        assert sorted(values_of(arrived)[:2]) == [b"past", b"plain"]
        assert ties == [b"tie %d" % number for number in range(20)]
        assert values_of(arrived)[-1] == b"last"
        for each in arrived:
            assert each.timestamp_ms >= int(each.headers["penstock-deliver-at"] or b"")
        assert arrived[-1].key == b"k"
        assert arrived[-1].headers["penstock-bridge-origin"] == f"{topic}/1/0".encode()
        until(lambda: "penstock_bridge_pending 0.0" in bridge.get("/metrics"), "nothing waits")
        assert bridge.get_json("/health")["status"] == "ok"
        assert bridge.get_json("/ready") == {"status": "ok", "cluster": "ok", "problems": 0, "shards": 1}
        assert "penstock_bridge_forwarded_total 23.0" in bridge.get("/metrics")
        assert bridge.stop() == "23 received, 23 forwarded, 0 dead letters"


def test_a_timer_is_replaced_and_cancelled_by_its_id(
    broker: BrokerProcess, topic: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    orders = f"{topic}-orders"
    create_topics(broker.kafka, {topic: 1, orders: 1})
    with bridging(
        tmp_path / "bridge", *bridge_arguments(broker, topic, "--tables", "3"), database=new_database("sqlite")
    ) as bridge:
        sender = Sender(broker.kafka)
        sender.send(topic, b"cancelled", asking(orders, delay="4s", timer_id="a"))
        sender.send(topic, b"replaced", asking(orders, delay="4s", timer_id="b"))
        sender.flush()
        until(lambda: "penstock_bridge_received_total 2.0" in bridge.get("/metrics"), "both are stored")
        sender.send(topic, None, asking(orders, cancel="a"))
        sender.send(topic, b"replacement", asking(orders, delay="3s", timer_id="b"))
        # In one batch with what they replace.
        sender.send(topic, b"first", asking(orders, delay="3s", timer_id="c"))
        sender.send(topic, b"second", asking(orders, delay="4s", timer_id="c"))
        sender.send(topic, b"end", asking(orders, delay="6s"))
        sender.flush()
        arrived = collect(broker.kafka, orders, lambda found: b"end" in values_of(found))
        assert values_of(arrived) == [b"replacement", b"second", b"end"]
        assert arrived[0].headers["penstock-bridge-timer-id"] == b"b"
        assert "penstock-timer-id" not in arrived[0].headers
        assert "penstock_bridge_removed_total 3.0" in bridge.get("/metrics")


def test_a_schedule_recurs_until_it_is_cancelled(
    broker: BrokerProcess, topic: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    orders = f"{topic}-orders"
    create_topics(broker.kafka, {topic: 1, orders: 1})
    arguments = bridge_arguments(broker, topic, "--plan", "days")
    with bridging(tmp_path / "bridge", *arguments, database=new_database("sqlite")) as bridge:
        sender = Sender(broker.kafka)
        sender.send(topic, b"tick", asking(orders, schedule="every 1s", timer_id="clock"))
        sender.flush()
        arrived = collect(broker.kafka, orders, lambda found: len(found) >= 3)
        due = [int(each.headers["penstock-deliver-at"] or b"") for each in arrived]
        assert [later - earlier for earlier, later in pairwise(due)] == [1000] * (len(due) - 1)
        sender.send(topic, None, asking(orders, cancel="clock"))
        sender.flush()
        until(lambda: "penstock_bridge_pending 0.0" in bridge.get("/metrics"), "the schedule is gone")


def test_what_cannot_be_delayed_is_a_dead_letter_with_the_reason(
    broker: BrokerProcess, topic: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    orders, dead = f"{topic}-orders", f"{topic}-bridge.dead"
    create_topics(broker.kafka, {topic: 1, orders: 1})
    arguments = bridge_arguments(broker, topic, "--plan", "turns", "--period", "1h")
    with bridging(tmp_path / "bridge", *arguments, database=new_database("sqlite")):
        sender = Sender(broker.kafka)
        sender.send(topic, b"soon", asking(orders, delay="soon"))
        sender.send(topic, b"nowhere", asking(delay="1s"))
        sender.send(topic, b"too long", asking(orders, delay="2h"))
        sender.send(topic, b"unknown", asking(f"{topic}-missing", delay="1s"))
        sender.send(topic, b"no partition", asking(orders, delay="1s", target_partition="9"))
        sender.send(topic, b"recurring", asking(orders, schedule="every 1m"))
        sender.send(topic, b"good", asking(orders, delay="2s"))
        sender.flush()
        assert values_of(collect(broker.kafka, orders, bool)) == [b"good"]
        letters = collect(broker.kafka, dead, lambda found: len(found) >= 6, quiet_s=1)
        reasons = {each.value: (each.headers["penstock-error"] or b"").decode() for each in letters}
        assert len(letters) == 6
        assert "is not a duration" in reasons[b"soon"]
        assert "no header penstock-target" in reasons[b"nowhere"]
        assert "this bridge keeps messages for 3600000 ms" in reasons[b"too long"]
        assert reasons[b"unknown"] == f"topic {topic}-missing does not exist"
        assert "partition" in reasons[b"no partition"]
        assert "in turns" in reasons[b"recurring"]
        origins = {(each.headers["penstock-origin"] or b"").decode().rsplit("/", 1)[0] for each in letters}
        assert origins == {f"{topic}/0/{number}" for number in range(6)}
    # The tools for dead letters know them: sent again, they are forwarded at once.
    listed = run([PENSTOCK, "deadletter", "list", f"{topic}-bridge", "-b", broker.kafka, "--json"]).stdout
    assert b"is not a duration" in listed and b"does not exist" in listed


def test_a_message_that_the_target_refuses_does_not_stop_the_others(
    broker: BrokerProcess, admin: AdminClient, topic: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    small, dead = f"{topic}-small", f"{topic}-bridge.dead"
    create_topics(broker.kafka, {topic: 1})
    made = admin.create_topics([NewTopic(small, 1, 1, config={"max.message.bytes": "20000"})])
    made[small].result(30)
    for delivery in ("exactly-once", "at-least-once"):
        arguments = bridge_arguments(broker, topic, "--delivery", delivery)
        with bridging(tmp_path / delivery, *arguments, database=new_database("sqlite")):
            sender = Sender(broker.kafka)
            before = len(collect(broker.kafka, small, lambda found: True, quiet_s=1))
            instant = str(now_ms() + 1500)
            for number in range(8):
                value = b"x" * 50_000 if number == 3 else b"%d" % number
                sender.send(topic, value, asking(small, deliver_at=instant))
            sender.flush()
            arrived = collect(broker.kafka, small, partial(has_at_least, before + 7), quiet_s=1)
            assert sorted(values_of(arrived[before:])) == [b"0", b"1", b"2", b"4", b"5", b"6", b"7"]
    letters = collect(broker.kafka, dead, lambda found: len(found) >= 2)
    assert [len(each.value or b"") for each in letters] == [50_000, 50_000]


def test_a_delay_topic_that_was_deleted_and_made_anew_starts_at_its_first_message(
    broker: BrokerProcess, admin: AdminClient, topic: str, tmp_path: Path
) -> None:
    orders, database = f"{topic}-orders", f"sqlite:///{tmp_path / 'bridge.db'}"
    create_topics(broker.kafka, {topic: 1, orders: 1})
    sender = Sender(broker.kafka)
    for name, count in (("first", 5), ("second", 3)):
        with bridging(tmp_path / name, *bridge_arguments(broker, topic), database=database) as bridge:
            for number in range(count):
                sender.send(topic, f"{name} {number}".encode(), asking(orders, delay="1s"))
            sender.flush()
            until(
                lambda bridge=bridge, count=count: f"forwarded_total {count}.0" in bridge.get("/metrics"),
                "all are sent",
            )
            bridge.stop()
        if name == "first":
            admin.delete_topics([topic])[topic].result(30)
            until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is gone")
            create_topics(broker.kafka, {topic: 1})
    arrived = collect(broker.kafka, orders, partial(has_at_least, 8), quiet_s=1)
    assert sorted(values_of(arrived)) == [b"first %d" % n for n in range(5)] + [b"second %d" % n for n in range(3)]


def test_tables_of_another_layout_are_not_touched(
    broker: BrokerProcess, topic: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    create_topics(broker.kafka, {topic: 1})
    database = new_database("sqlite")
    with bridging(tmp_path / "first", *bridge_arguments(broker, topic), database=database) as bridge:
        bridge.stop()
    second = BridgeProcess(tmp_path / "second", *bridge_arguments(broker, topic, "--tables", "2"), database=database)
    second.launch()
    until(lambda: not second.is_alive, "the bridge refuses to start")
    assert "were made with other settings" in second.log
    assert "Traceback" not in second.log


def test_shards_over_databases_keep_the_order_of_a_target_if_told_to(
    broker: BrokerProcess, topic: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    targets = [f"{topic}-{number}" for number in range(4)]
    create_topics(broker.kafka, {topic: 1, **dict.fromkeys(targets, 1)})
    databases = "\n".join(new_database(kind) for kind in ("sqlite", "mariadb"))
    arguments = bridge_arguments(broker, topic, "--tables", "2", "--order", "topic", "--batch", "10")
    with bridging(tmp_path / "bridge", *arguments, database=databases) as bridge:
        until(lambda: bridge.get_json("/ready")["shards"] == 4, "the bridge has all shards")
        sender = Sender(broker.kafka)
        instant = str(now_ms() + 2000)
        for number in range(80):
            sender.send(topic, b"%d" % number, asking(targets[number % 4], deliver_at=instant), partition=0)
        sender.flush()
        for first, target in enumerate(targets):
            arrived = collect(broker.kafka, target, partial(has_at_least, 20), quiet_s=1)
            assert values_of(arrived) == [b"%d" % number for number in range(first, 80, 4)]


def test_what_the_database_cannot_store_is_a_dead_letter_and_the_others_wait(
    broker: BrokerProcess, admin: AdminClient, topic: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    orders = f"{topic}-orders"
    create_topics(broker.kafka, {orders: 1})
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "20000000"})])[topic].result(30)
    with bridging(tmp_path / "bridge", *bridge_arguments(broker, topic), database=new_database("mariadb")):
        sender = Sender(broker.kafka, max_bytes=20_000_000)
        sender.send(topic, b"small", asking(orders, delay="1s"))
        # As a statement it is twice as long, and MariaDB takes 16 MB.
        sender.send(topic, b"x" * 9_000_000, asking(orders, delay="1s"))
        sender.send(topic, b"behind", asking(orders, delay="1s"))
        sender.flush()
        assert values_of(collect(broker.kafka, orders, partial(has_at_least, 2), quiet_s=1)) == [b"small", b"behind"]
        (letter,) = collect(broker.kafka, f"{topic}-bridge.dead", bool)
        assert len(letter.value or b"") == 9_000_000
        assert b"the database cannot store the message" in (letter.headers["penstock-error"] or b"")
