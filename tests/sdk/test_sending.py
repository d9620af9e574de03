"""Sending with `penstock.Client`: what arrives, as clients of others see it, and what is refused before it is sent."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, wait
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import penstock
from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.delayed import Arrivals, assert_not_early
from support.foreign import seen_in, values_in
from support.programs import required_program, run
from support.waiting import PATIENCE_S, until


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    """A topic of three partitions."""
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result()
    return topic


def test_a_message_arrives_with_all_that_was_said_about_it(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    receipt = client.send(
        created,
        "käse",
        key="42",
        headers={"trace": b"\x00\x01", "none": None},
        partition=2,
        timestamp=datetime(2026, 3, 1, tzinfo=UTC),
        tags=["checkout", "eu"],
        biz_id="order-42",
    )
    assert receipt == penstock.Receipt(created, 2, 0)
    (seen,) = seen_in(broker.kafka, created)
    assert (seen.partition, seen.offset, seen.key, seen.value) == (2, 0, b"42", "käse".encode())
    assert seen.timestamp_ms == datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000
    assert seen.headers == [
        ("trace", b"\x00\x01"),
        ("none", None),
        ("penstock-tags", b"checkout,eu"),
        ("penstock-biz-id", b"order-42"),
    ]


def test_kcat_reads_what_was_sent(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    client.send(created, b"value", key=b"key", partition=0, headers=[("twice", "1"), ("twice", "2")], tags="one")
    done = run([required_program("kcat"), "-b", broker.kafka, "-C", "-t", created, "-p", "0", "-e", "-q", "-J"])
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert (found["key"], found["payload"]) == ("key", "value")
    assert found["headers"] == ["twice", "1", "twice", "2", "penstock-tags", "one"]


def test_keys_go_where_other_clients_put_them(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    from kafka import KafkaProducer

    keys = [f"key-{number}" for number in range(50)]
    topic_partitions = {key: client.send_soon(created, b"ours", key=key) for key in keys}
    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    theirs = {key: producer.send(created, b"theirs", key=key.encode()) for key in keys}
    producer.flush()
    for key in keys:
        assert topic_partitions[key].result(PATIENCE_S).partition == theirs[key].get(PATIENCE_S).partition
    producer.close()


def test_a_tombstone_has_no_value(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    client.send(created, None, key="gone")
    assert [(each.key, each.value) for each in seen_in(broker.kafka, created)] == [(b"gone", None)]


def test_futures_and_callbacks_tell_where_each_message_is(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    results: list[Any] = []
    futures = [client.send_soon(created, str(n), partition=1, on_result=results.append) for n in range(1000)]
    assert client.flush()
    assert wait(futures, 0).not_done == set()
    assert [future.result().offset for future in futures] == list(range(1000))
    assert results == [future.result() for future in futures]
    assert values_in(broker.kafka, created) == [str(n).encode() for n in range(1000)]
    assert client.counters.sent == 1000


def test_many_threads_share_a_client(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    def send(name: int) -> None:
        for number in range(20):
            client.send(created, f"{name}-{number}")

    threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(values_in(broker.kafka, created))) == 160


def test_leaving_the_block_sends_what_is_left(broker: BrokerProcess, created: str) -> None:
    with penstock.Client(broker.kafka, sending=penstock.Sending(linger="10s")) as client:
        futures = [client.send_soon(created, str(number)) for number in range(100)]
    assert all(future.done() for future in futures)
    assert len(values_in(broker.kafka, created)) == 100


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_every_compression_survives_the_way(broker: BrokerProcess, created: str, compression: Any) -> None:
    sending = penstock.Sending(compression=compression, linger="50ms")
    with penstock.Client(broker.kafka, sending=sending) as client:
        for number in range(100):
            client.send_soon(created, f"{number}" * 100, partition=0)
    assert values_in(broker.kafka, created) == [(f"{number}" * 100).encode() for number in range(100)]


def test_at_most_once_is_not_answered_with_an_offset(broker: BrokerProcess, created: str) -> None:
    with penstock.Client(broker.kafka, sending=penstock.Sending(delivery="at-most-once")) as client:
        assert client.send(created, b"x", partition=0) == penstock.Receipt(created, 0, None)
    until(lambda: values_in(broker.kafka, created) == [b"x"], "the message is there")


def test_a_delayed_message_comes_when_it_is_due_and_has_no_offset_before(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    at = datetime.now(UTC) + timedelta(seconds=1)
    receipts = [
        client.send(created, b"delay", partition=0, delay="1s"),
        client.send(created, b"seconds", partition=0, delay=1.2),
        client.send(created, b"timedelta", partition=0, delay=timedelta(seconds=1.4)),
        client.send(created, b"level", partition=0, delay="level:1"),
        client.send(created, b"datetime", partition=0, deliver_at=at),
        client.send(created, b"milliseconds", partition=0, deliver_at=int(at.timestamp() * 1000) + 600),
    ]
    assert {receipt.offset for receipt in receipts} == {None}
    past = client.send(created, b"past", partition=0, deliver_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert past.offset is not None
    with Arrivals(broker.kafka, created) as arrivals:
        arrivals.until(7)
        assert arrivals.values[0] == b"past"
        assert Counter(arrivals.values)[b"delay"] == 1
        assert_not_early(arrivals.all)


def test_a_cancelled_message_never_comes_and_a_rescheduled_one_comes_once(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    client.send(created, b"cancelled by key", key="1", delay="2s", timer_id="a")
    client.send(created, b"cancelled everywhere", key="2", delay="2s", timer_id="b")
    client.send(created, b"late", key="3", delay="1h", timer_id="c")
    client.cancel(created, "a", key="1")
    client.cancel(created, "b")
    client.cancel(created, "never heard of")
    assert client.reschedule(created, "c", b"early", key="3", delay="2500ms").offset is None
    client.send(created, b"last", partition=0, delay="3s")
    client.send(created, b"last", partition=1, delay="3s")
    client.send(created, b"last", partition=2, delay="3s")
    assert sorted(filter(None, values_in(broker.kafka, created, 4))) == [b"early", b"last", b"last", b"last"]


def test_a_schedule_comes_again_and_again_until_it_is_cancelled(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    client.send(created, b"tick", partition=0, schedule="every 1s", timer_id="clock")
    with Arrivals(broker.kafka, created) as arrivals:
        arrivals.until(2)
    client.cancel(created, "clock", partition=0)
    assert set(values_in(broker.kafka, created)) == {b"tick"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"delay": "soon"}, "'soon' is not a duration"),
        ({"delay": "30"}, "'30' has no unit"),
        ({"delay": -1}, "negative"),
        ({"delay": True}, "True is not a duration"),
        ({"delay": "1s", "deliver_at": 1}, "delay and deliver_at cannot be combined"),
        ({"deliver_at": 1, "schedule": "every 5s"}, "deliver_at and schedule cannot be combined"),
        ({"deliver_at": datetime(2030, 1, 1)}, "needs a time zone"),
        ({"deliver_at": -5}, "deliver_at is out of range: -5 ms"),
        ({"deliver_at": "tomorrow"}, "deliver_at must be .*, not 'tomorrow'"),
        ({"schedule": "cron 61 * * * *"}, "'61' is not between 0 and 59"),
        ({"schedule": "cron 0 9 * * * Europe/Nowhere"}, "no time zone Europe/Nowhere"),
        ({"schedule": "every 1ms"}, "every 1ms"),
        ({"timer_id": ""}, "timer_id must be .*, not ''"),
        ({"timer_id": "x" * 256}, "1 to 255 bytes"),
        ({"tags": ["a,b"]}, "'a,b' is not a tag"),
        ({"tags": [" a"]}, "' a' is not a tag"),
        ({"tags": [""]}, "'' is not a tag"),
        ({"biz_id": ""}, "biz_id must be .*, not ''"),
        ({"partition": -1}, "partition must be .*, not -1"),
        ({"key": 42}, "key must be .*, not int"),
        ({"headers": {"": b""}}, "'' is not a header name"),
        ({"headers": {"a": 1}}, "header a must be .*, not int"),
        ({"headers": ["ab"]}, "'ab' is not a header"),
        ({"headers": {"penstock-delay": "1s"}, "delay": "1s"}, "penstock-delay is set twice"),
        ({"timestamp": datetime(2030, 1, 1)}, "timestamp needs a time zone: 2030-01-01T00:00:00 has none"),
        ({"colour": "red"}, "unknown option colour"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_is_sent(
    client: penstock.Client, topic: str, options: Any, named: str
) -> None:
    with pytest.raises(penstock.InvalidInputError, match=named.replace("(", r"\(")):
        client.send(topic, b"value", **options)
    with pytest.raises(penstock.InvalidInputError):
        client.send_soon(topic, b"value", **options)
    assert client.counters == penstock.Counters()


@pytest.mark.parametrize("topic", ["", "a b", "x" * 250, "..", "a/b"])
def test_a_topic_that_cannot_be_is_refused(client: penstock.Client, topic: str) -> None:
    with pytest.raises(penstock.InvalidInputError, match="is not a topic name"):
        client.send(topic, b"value")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"delivery": "sometimes"}, "delivery must be .*, not 'sometimes'"),
        ({"compression": "rar"}, "compression must be .*, not 'rar'"),
        ({"linger": "long"}, "linger: 'long'"),
        ({"tries": 0}, "tries must be .*, not 0"),
        ({"try_timeout": 0}, "try_timeout must be .*, not 0"),
        ({"batch_bytes": 0}, "batch_bytes must be .*, not 0"),
        ({"transactional_id": "me"}, "transactional_id requires exactly-once"),
        ({"delivery": "exactly-once", "when_away": penstock.Spill("somewhere")}, "Spill cannot be combined"),
    ],
)
def test_ways_of_sending_that_cannot_be_are_refused(wrong: Any, named: str) -> None:
    with pytest.raises(penstock.InvalidInputError, match=named):
        penstock.Sending(**wrong)


@pytest.mark.parametrize("bootstrap", ["", "localhost", "a b:1", "host:port", "one:1,,two:2"])
def test_a_bootstrap_that_cannot_be_is_refused(bootstrap: str) -> None:
    with pytest.raises(penstock.InvalidInputError, match="bootstrap: "):
        penstock.Client(bootstrap)


def test_a_closed_client_takes_nothing(broker: BrokerProcess, topic: str) -> None:
    client = penstock.Client(broker.kafka)
    client.close()
    client.close()
    with pytest.raises(penstock.ClosedError):
        client.send(topic, b"late")
    with pytest.raises(penstock.ClosedError), client.transaction():
        pass


def test_what_the_broker_refuses_fails_with_the_reason(
    broker: BrokerProcess, client: penstock.Client, admin: AdminClient, created: str
) -> None:
    view = NewTopic(f"{created}-view", -1, -1, config={"penstock.view.of": created, "penstock.view.tags": "a"})
    admin.create_topics([view])[view.topic].result()
    with pytest.raises(penstock.SendError, match="it is a view") as refused:
        client.send(view.topic, b"value")
    assert not refused.value.is_retriable
    with pytest.raises(penstock.SendError, match="Unknown partition"):
        client.send(created, b"value", partition=7)
    with pytest.raises(penstock.SendError, match="the broker refused the record"):
        client.send(created, b"value", headers={"penstock-delay": "whenever"})
    assert client.counters.failed == 3
    assert client.send(created, b"value").offset == 0


def test_a_message_fails_when_its_tries_have_passed(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    sending = penstock.Sending(tries=2, try_timeout="2s")
    with penstock.Client(broker.kafka, sending=sending) as client:
        client.send(topic, b"before")
        broker.kill()
        with pytest.raises(penstock.SendError, match="within all tries") as failed:
            client.send(topic, b"while away")
        assert failed.value.is_retriable
        broker.start()
        until(lambda: _is_sent(client, topic), "the client has found the broker again")


def test_nothing_is_lost_doubled_or_swapped_when_the_broker_is_killed(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    values = [str(number).encode() for number in range(20_000)]
    futures: list[Future[penstock.Receipt]] = []
    with penstock.Client(broker.kafka) as client:
        client.send(topic, b"first", partition=0)

        def send() -> None:
            for value in values:
                futures.append(client.send_soon(topic, value, partition=0))
                if len(futures) % 100 == 0:
                    time.sleep(0.005)

        sending = threading.Thread(target=send)
        sending.start()
        for share in (4, 2):
            until(lambda share=share: len(futures) > len(values) // share, "the client is sending")
            broker.kill()
            broker.start()
        sending.join()
        assert client.flush(60)
        assert [future.exception() for future in futures if future.exception() is not None] == []
    # A try that is repeated lands once.
    assert values_in(broker.kafka, topic) == [b"first", *values]


def _is_sent(client: penstock.Client, topic: str) -> bool:
    try:
        client.send(topic, b"again")
    except penstock.SendError:
        return False
    return True


def test_a_broker_starts_without_what_clients_need() -> None:
    words = "import sys, penstock, penstock.broker.broker; print([m for m in sys.modules if 'confluent' in m])"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_can_be_imported() -> None:
    for name in dir(penstock):
        assert getattr(penstock, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Clinet'"):
        penstock.Clinet  # noqa: B018
