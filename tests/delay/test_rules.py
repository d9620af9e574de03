"""Order, caps, levels, names, schedules, transactions: what a topic's messages for later keep to."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.delayed import Arrivals, Sending, assert_not_early, delayed, refusal, send, send_with
from support.waiting import PATIENCE_S


def create(admin: AdminClient, topic: str, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, 1, config=settings)])[topic].result(PATIENCE_S)


def at(value: bytes, due_ms: int, **more: str) -> Sending:
    headers = [("penstock-deliver-at", b"%d" % due_ms)]
    return Sending(
        value, headers + [(f"penstock-{name.replace('_', '-')}", text.encode()) for name, text in more.items()]
    )


def cancel(name: str) -> Sending:
    return Sending(b"never seen", [("penstock-cancel", name.encode())])


def now_ms() -> int:
    return int(time.time() * 1000)


def transactional(broker: BrokerProcess, name: str, **more: Any) -> Producer:
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": name, "linger.ms": 20, **more})
    producer.init_transactions(PATIENCE_S)
    return producer


def test_messages_of_the_same_millisecond_keep_the_order_in_which_they_were_sent(
    broker: BrokerProcess, topic: str
) -> None:
    due = now_ms() + 1500
    values = [b"%d" % number for number in range(3000)]
    for start in range(0, 3000, 500):
        send(broker.kafka, topic, [at(value, due) for value in values[start : start + 500]], **{"linger.ms": 1})
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(3000)
    assert arrivals.values == values
    assert_not_early(arrivals.all)


def test_messages_come_by_due_time_whatever_the_order_of_sending(broker: BrokerProcess, topic: str) -> None:
    base = now_ms() + 1000
    dues = [base + (number * 7919) % 500 for number in range(500)]
    send(broker.kafka, topic, [at(b"%d" % due, due) for due in dues])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(500)
    assert [int(value) for value in arrivals.values] == sorted(dues)


def test_a_time_in_the_past_is_delivered_at_its_place(broker: BrokerProcess, topic: str) -> None:
    told = send(broker.kafka, topic, [Sending(b"a"), at(b"b", 5), at(b"c", now_ms() - 1), Sending(b"d")])
    with Arrivals(broker.kafka, topic) as arrivals:
        found = arrivals.until(4)
    assert [arrival.offset for arrival in found] == told == [0, 1, 2, 3]


def test_a_cap_is_an_error_that_names_it(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    create(admin, topic, penstock_delay_max_ms="60000")
    send(broker.kafka, topic, [delayed(b"taken", "1m")])
    error = refusal(broker.kafka, topic, delayed(b"refused", "61s"))
    assert error.name() == "INVALID_RECORD"


def test_a_refused_record_refuses_its_batch_and_nothing_of_it_waits(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, penstock_delay_max_ms="60000")
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5000, "retries": 0})
    errors = []
    for message in (delayed(b"good", "100"), delayed(b"bad", "61s")):
        producer.produce(
            topic,
            message.value,
            partition=0,
            headers=list(message.headers),
            on_delivery=lambda error, _: errors.append(error),
        )
    producer.flush(PATIENCE_S)
    assert len(errors) == 2 and all(error is not None for error in errors)
    send(broker.kafka, topic, [delayed(b"last", "300")])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(1)
    assert arrivals.values == [b"last"]


def test_levels_are_those_of_the_topic(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    create(admin, topic, penstock_delay_levels="100ms,1h")
    send(broker.kafka, topic, [delayed(b"far", "level:2"), delayed(b"near", "level:1")])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(1)
    assert arrivals.values == [b"near"]
    assert refusal(broker.kafka, topic, delayed(b"none", "level:3")).name() == "INVALID_RECORD"


def test_a_cancelled_message_never_comes(broker: BrokerProcess, topic: str) -> None:
    send(broker.kafka, topic, [delayed(b"a", "700", timer_id="A"), delayed(b"b", "700", timer_id="B")])
    send(broker.kafka, topic, [cancel("A"), cancel("nobody"), delayed(b"end", "900")])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(2)
    assert arrivals.values == [b"b", b"end"]


def test_a_cancel_in_the_same_batch_counts_by_its_place(broker: BrokerProcess, topic: str) -> None:
    messages = [
        delayed(b"gone", "300", timer_id="A"),
        cancel("A"),
        delayed(b"stays", "300", timer_id="A"),
        delayed(b"end", "500"),
    ]
    send(broker.kafka, topic, messages, **{"linger.ms": 200})
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(2)
    assert arrivals.values == [b"stays", b"end"]


def test_a_message_of_the_same_name_takes_the_place_of_the_one_that_waits(broker: BrokerProcess, topic: str) -> None:
    send(broker.kafka, topic, [delayed(b"first", "400", timer_id="A")])
    send(broker.kafka, topic, [delayed(b"second", "2h", timer_id="A")])
    send(broker.kafka, topic, [delayed(b"third", "800", timer_id="A"), delayed(b"end", "1000")])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(2)
    assert arrivals.values == [b"third", b"end"]


def test_a_name_without_a_time_is_due_now_and_replaces_what_waits(broker: BrokerProcess, topic: str) -> None:
    send(broker.kafka, topic, [delayed(b"later", "600", timer_id="A")])
    send(broker.kafka, topic, [Sending(b"now", [("penstock-timer-id", b"A")]), delayed(b"end", "900")])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(2)
    assert arrivals.values == [b"now", b"end"]


def test_a_schedule_comes_again_until_it_is_cancelled(broker: BrokerProcess, topic: str) -> None:
    send(broker.kafka, topic, [Sending(b"tick", [("penstock-schedule", b"every 1s"), ("penstock-timer-id", b"T")])])
    with Arrivals(broker.kafka, topic) as arrivals:
        found = arrivals.until(3)
        dues = [int(arrival.headers["penstock-deliver-at"]) for arrival in found]
        assert [later - before for before, later in pairwise(dues)] == [1000, 1000]
        assert "penstock-schedule" not in found[0].headers
        assert_not_early(found)
        send(broker.kafka, topic, [cancel("T"), delayed(b"end", "2500")])
        arrivals.until_seen(b"end")
        cancelled_ms = int(arrivals.all[-1].headers["penstock-deliver-at"]) - 2500
        for arrival in arrivals.all[:-1]:
            assert int(arrival.headers["penstock-deliver-at"]) <= cancelled_ms + 100


def test_a_delayed_message_of_a_committed_transaction_comes_and_of_an_aborted_one_never(
    broker: BrokerProcess, topic: str
) -> None:
    producer = transactional(broker, topic)
    producer.begin_transaction()
    send_with(producer, topic, [Sending(b"aborted"), delayed(b"aborted later", "200")])
    producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    send_with(producer, topic, [delayed(b"later", "300"), Sending(b"now")])
    producer.commit_transaction(PATIENCE_S)
    send(broker.kafka, topic, [delayed(b"end", "600")])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(3)
    assert arrivals.values == [b"now", b"later", b"end"]
    assert_not_early(arrivals.all)


def test_what_is_committed_after_its_due_time_is_due_at_the_commit(broker: BrokerProcess, topic: str) -> None:
    producer = transactional(broker, topic)
    producer.begin_transaction()
    send_with(producer, topic, [delayed(b"in", "50")])
    send(broker.kafka, topic, [delayed(b"out", "300")])
    with Arrivals(broker.kafka, topic, isolation="read_uncommitted") as arrivals:
        arrivals.until(1)
        assert arrivals.values == [b"out"]
        producer.commit_transaction(PATIENCE_S)
        arrivals.until(2)
    assert arrivals.values == [b"out", b"in"]


def test_a_cancel_counts_when_its_transaction_is_committed(broker: BrokerProcess, topic: str) -> None:
    send(broker.kafka, topic, [delayed(b"a", "1500", timer_id="A"), delayed(b"b", "1500", timer_id="B")])
    producer = transactional(broker, topic)
    producer.begin_transaction()
    send_with(producer, topic, [cancel("A")])
    producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    send_with(producer, topic, [cancel("B")])
    producer.commit_transaction(PATIENCE_S)
    send(broker.kafka, topic, [delayed(b"end", "1600")])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(2)
    assert arrivals.values == [b"a", b"end"]


@pytest.mark.parametrize(
    "config", [{"penstock_storage": "memory"}, {"flush_messages": "1"}, {"cleanup_policy": "compact"}]
)
def test_every_kind_of_topic(broker: BrokerProcess, admin: AdminClient, topic: str, config: dict[str, str]) -> None:
    create(admin, topic, **config)
    due = now_ms() + 600
    messages = [at(b"%d" % number, due + number % 3)._replace(key=b"%d" % number) for number in range(30)]
    send(broker.kafka, topic, messages)
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(30)
    assert sorted(map(int, arrivals.values)) == list(range(30))
    assert_not_early(arrivals.all)


def test_deleting_records_leaves_what_waits(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    send(broker.kafka, topic, [Sending(b"old"), delayed(b"later", "1500"), Sending(b"old")])
    admin.delete_records([TopicPartition(topic, 0, -1)])[TopicPartition(topic, 0)].result(PATIENCE_S)
    with Arrivals(broker.kafka, topic) as arrivals:
        found = arrivals.until(1)
    assert (arrivals.values, found[0].offset) == ([b"later"], 3)
