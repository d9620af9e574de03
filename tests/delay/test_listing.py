"""What waits can be read like a topic, by clients that know nothing of it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from hashlib import sha256

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from support.broker_process import BrokerProcess
from support.delayed import Arrivals, Sending, delayed, refusal, send, send_with
from support.listing import listed
from support.waiting import PATIENCE_S, until

BrokerFactory = Callable[..., BrokerProcess]
HOUR_MS = 3_600_000


def at(value: bytes, due_ms: int, **more: str) -> Sending:
    headers = [("penstock-deliver-at", b"%d" % due_ms)]
    return Sending(
        value, headers + [(f"penstock-{name.replace('_', '-')}", text.encode()) for name, text in more.items()]
    )


def cancel(name: str) -> Sending:
    return Sending(b"", [("penstock-cancel", name.encode())])


def values(kafka: str, topic: str) -> list[bytes]:
    return [record.value for record in listed(kafka, topic)]


def by_id(kafka: str, topic: str, name: str) -> list[bytes]:
    """The value that waits under a name, as kcat and a shell find it."""
    offset = int(sha256(name.encode()).hexdigest()[:15], 16)
    found = subprocess.run(
        ["kcat", "-q", "-b", kafka, "-t", f"__timer-ids.{topic}", "-C", "-e", "-o", str(offset), "-f", "%s %T\n"],
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return found.stdout.splitlines()


def test_what_waits_is_listed_by_due_time_and_is_not_taken_away_by_that(broker: BrokerProcess, topic: str) -> None:
    base = int(time.time() * 1000) + HOUR_MS
    dues = [base + (number * 7919) % 4000 * 1000 for number in range(4000)]
    send(broker.kafka, topic, [at(b"%d" % due, due) for due in dues])
    for _ in range(2):
        found = listed(broker.kafka, topic)
        assert [int(record.value) for record in found] == sorted(dues)
        assert [record.timestamp for record in found] == sorted(dues)
    window = listed(broker.kafka, topic, from_ms=base + 3_000_500)
    assert [record.timestamp for record in window] == sorted(due for due in dues if due >= base + 3_001_000)
    assert listed(broker.kafka, topic, from_ms=base + 5_000_000) == []


def test_many_of_one_millisecond_are_listed_in_the_order_in_which_they_were_sent(
    broker: BrokerProcess, topic: str
) -> None:
    due = int(time.time() * 1000) + HOUR_MS
    send(broker.kafka, topic, [at(b"%d" % number, due) for number in range(5000)], **{"linger.ms": 1})
    assert values(broker.kafka, topic) == [b"%d" % number for number in range(5000)]


def test_delivered_cancelled_and_replaced_messages_are_not_listed_and_what_recurs_has_its_next_time(
    broker: BrokerProcess, topic: str
) -> None:
    now = int(time.time() * 1000)
    messages = [
        delayed(b"delivered", "100"),
        at(b"cancelled", now + HOUR_MS, timer_id="A"),
        at(b"first", now + HOUR_MS, timer_id="B"),
        at(b"kept", now + HOUR_MS),
        Sending(b"tick", [("penstock-schedule", b"every 1s"), ("penstock-timer-id", b"T")]),
    ]
    send(broker.kafka, topic, messages)
    send(broker.kafka, topic, [cancel("A"), at(b"second", now + 2 * HOUR_MS, timer_id="B")])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until_true(lambda: arrivals.values.count(b"tick") >= 2, "two ticks")
        last_due = int(arrivals.all[-1].headers["penstock-deliver-at"])
    found = listed(broker.kafka, topic)
    assert [record.value for record in found] == [b"tick", b"kept", b"second"]
    assert found[0].timestamp >= last_due + 1000 and (found[0].timestamp - last_due) % 1000 == 0
    assert ("penstock-schedule", b"every 1s") in found[0].headers
    assert by_id(broker.kafka, topic, "A") == []
    assert by_id(broker.kafka, topic, "B") == [b"second %d" % (now + 2 * HOUR_MS)]
    assert by_id(broker.kafka, topic, "nobody") == []


def test_what_is_in_a_transaction_is_listed_when_it_is_committed(broker: BrokerProcess, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    send_with(producer, topic, [delayed(b"aborted", "1h")])
    producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    send_with(producer, topic, [delayed(b"committed", "1h")])
    assert values(broker.kafka, topic) == []
    producer.commit_transaction(PATIENCE_S)
    until(lambda: values(broker.kafka, topic) == [b"committed"], "it is listed")


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_waits_is_listed_after_a_restart(new_broker: BrokerFactory, is_clean: bool) -> None:
    broker = new_broker()
    due = int(time.time() * 1000) + HOUR_MS
    # More than one run of the index.
    messages = [at(b"%d" % number, due + number * 50, timer_id=f"n{number}") for number in range(17_000)]
    send(broker.kafka, "t", messages)
    send(broker.kafka, "t", [cancel(f"n{number}") for number in range(0, 17_000, 20)])
    if is_clean:
        assert broker.stop() == 0
    else:
        broker.kill()
    broker.start()
    assert values(broker.kafka, "t") == [b"%d" % number for number in range(17_000) if number % 20]
    assert by_id(broker.kafka, "t", "n7") == [b"7 %d" % (due + 350)]
    assert by_id(broker.kafka, "t", "n20") == []


def test_the_furthest_time_and_an_empty_topic_can_be_listed(broker: BrokerProcess, topic: str) -> None:
    send(broker.kafka, topic, [Sending(b"now")])
    assert values(broker.kafka, topic) == []
    send(broker.kafka, topic, [at(b"never", (1 << 48) - 1), at(b"soon", int(time.time() * 1000) + HOUR_MS)])
    assert values(broker.kafka, topic) == [b"soon", b"never"]


def test_such_a_topic_can_be_neither_written_to_nor_made_nor_listed_with_others(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    send(broker.kafka, topic, [delayed(b"x", "1h")])
    assert refusal(broker.kafka, f"__timers.{topic}", Sending(b"x")).name() == "TOPIC_EXCEPTION"
    for name in (f"__timers.{topic}", "__timer-ids.other"):
        with pytest.raises(KafkaException, match="shows what waits in"):
            admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE_S)
    names = set(admin.list_topics(timeout=PATIENCE_S).topics)
    assert topic in names and not any(name.startswith("__timer") for name in names)


def test_there_is_none_of_a_topic_that_is_not_there(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    assert KafkaConsumer(bootstrap_servers=broker.kafka).partitions_for_topic(f"__timers.{topic}") in (None, set())
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics
