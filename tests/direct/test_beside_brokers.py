"""The same topics with and without brokers: one after the other, and at the same time."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from penstock import ids
from penstock.brokerless.producer import new_producer_id
from penstock.brokerless.sql.store import SqlStore
from penstock.brokerless.store import GroupMember, GroupOffsets, SendBatch, Sequenced
from penstock.clock import SystemClock
from penstock.sdk.ports import Headers, Outgoing
from support.broker_process import BrokerProcess
from support.confluent import consumer_of, read
from support.pulse import PATIENT
from support.stores import NewDatabase
from support.waiting import until

from .conftest import NewSqlBroker, OpenStore

TOPIC = "ledger"
ZERO = ids.TopicPartition(TOPIC, 0)
SESSION_MS = 60_000
LEASE_MS = 3_000


class Appender:
    """Sends to partition 0, with consecutive sequences."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._producer = new_producer_id()
        self._sent = 0

    def send(self, *values: bytes, headers: Headers = ()) -> None:
        messages = [Outgoing(TOPIC, value, headers=headers) for value in values]
        self._store.append(SendBatch(ZERO, messages, Sequenced(self._producer, self._sent)))
        self._sent += len(values)


def stored(store: SqlStore) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        page = store.read(ZERO, offset, 1000)
        found += [message.value or b"" for message in page.messages]
        if page.next_offset == offset:
            return found
        offset = page.next_offset


def produce(broker: BrokerProcess, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka, **PATIENT})
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(30) == 0


def consumed(broker: BrokerProcess, count: int) -> list[bytes]:
    consumer = consumer_of(broker)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    try:
        return [message.value() or b"" for message in read(consumer, count)]
    finally:
        consumer.close()


def test_a_broker_that_comes_later_leads_what_was_used_directly(
    store: SqlStore, url: str, sql_broker: NewSqlBroker
) -> None:
    store.topics.create(TOPIC, 1)
    appender = Appender(store)
    appender.send(b"a", b"b", headers=(("name", b"value"),))
    broker = sql_broker(url)
    assert consumed(broker, 2) == [b"a", b"b"]
    produce(broker, b"c")
    until(lambda: stored(store) == [b"a", b"b", b"c"], "the client reads what the broker has appended")
    appender.send(b"d")
    produce(broker, b"e")
    assert consumed(broker, 5) == [b"a", b"b", b"c", b"d", b"e"]
    assert stored(store) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_consumer_that_waits_at_a_broker_gets_what_is_sent_without_one(
    store: SqlStore, url: str, sql_broker: NewSqlBroker
) -> None:
    store.topics.create(TOPIC, 1)
    appender = Appender(store)
    appender.send(b"before")
    broker = sql_broker(url)
    # It asks again only when the test has failed.
    consumer = consumer_of(broker, **{"fetch.wait.max.ms": 250_000, "socket.timeout.ms": 300_000})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    assert [message.value() for message in read(consumer, 1)] == [b"before"]
    until(lambda: broker.metric("penstock_parked_fetches") == 1, "the consumer waits")
    appender.send(b"after")
    assert [message.value() for message in read(consumer, 1)] == [b"after"]
    consumer.close()


def test_a_group_goes_on_where_it_was_with_and_without_a_broker(
    store: SqlStore, url: str, sql_broker: NewSqlBroker
) -> None:
    store.topics.create(TOPIC, 1)
    Appender(store).send(*(b"%d" % number for number in range(10)))
    store.heartbeat("g", GroupMember("a", frozenset({TOPIC})), SESSION_MS)
    epoch = store.claim("g", "a", [ZERO])[ZERO].epoch
    store.commit(GroupOffsets("g", "a", {ZERO: 4}, {ZERO: epoch}))
    store.leave("g", "a")
    broker = sql_broker(url)
    consumer = consumer_of(broker, **{"group.id": "g"})
    until(lambda: _committed(consumer) == 4, "the broker takes the offset over")
    consumer.subscribe([TOPIC])
    assert [message.value() for message in read(consumer, 3)] == [b"4", b"5", b"6"]
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
    consumer.close()
    until(lambda: store.committed("g", [ZERO]) == {ZERO: 7}, "the table has the broker's offset")
    store.heartbeat("g", GroupMember("b", frozenset({TOPIC})), SESSION_MS)
    granted = store.claim("g", "b", [ZERO])[ZERO]
    assert granted.committed == 7
    store.commit(GroupOffsets("g", "b", {ZERO: 9}, {ZERO: granted.epoch}))
    other = consumer_of(broker, **{"group.id": "g"})
    until(lambda: _committed(other) == 9, "the broker follows")
    # What the broker notes of it is no edit of a person.
    assert ZERO in store.heartbeat("g", GroupMember("b", frozenset({TOPIC})), SESSION_MS).claims
    other.close()


def _committed(consumer: Consumer) -> int:
    (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
    return int(found.offset)


def test_a_broker_delivers_what_clients_delay_and_clients_do_when_it_is_gone(
    store: SqlStore, url: str, sql_broker: NewSqlBroker
) -> None:
    store.topics.create(TOPIC, 1)
    appender = Appender(store)
    appender.send(b"first", headers=_due_in(1500))
    broker = sql_broker(url, **{"cluster.lease_ms": LEASE_MS})
    appender.send(b"second", headers=_due_in(2000))
    until(lambda: stored(store) == [b"first", b"second"], "the broker delivers")
    appender.send(b"third", headers=_due_in(LEASE_MS + 3000))
    until(lambda: _inbox_is_empty(store), "the broker has taken it in")
    broker.kill()
    appender.send(b"fourth", headers=_due_in(LEASE_MS + 3500))
    until(lambda: stored(store) == [b"first", b"second", b"third", b"fourth"], "a client delivers")


def _due_in(milliseconds: int) -> Headers:
    return (("penstock-deliver-at", str(SystemClock().now_ms() + milliseconds).encode()),)


def _inbox_is_empty(store: SqlStore) -> bool:
    return store.thread.read("default", lambda cn: cn.execute("SELECT COUNT(*) FROM queue_inbox")) == [(0,)]


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_clients_and_producers_of_a_broker_append_to_one_partition_at_once(
    kind: str, new_database: NewDatabase, open_store: OpenStore, sql_broker: NewSqlBroker
) -> None:
    url = new_database(kind)
    stores = [open_store(url) for _ in range(2)]
    stores[0].topics.create(TOPIC, 1)
    broker = sql_broker(url)
    failures: list[object] = []
    told: list[bytes] = []

    def direct(name: bytes, store: SqlStore) -> None:
        appender = Appender(store)
        for number in range(300):
            appender.send(b"%s %d" % (name, number))

    def through_broker() -> None:
        producer = Producer({"bootstrap.servers": broker.kafka, **PATIENT})

        def done(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            told.append(message.value() or b"")

        for number in range(300):
            producer.produce(TOPIC, b"broker %d" % number, partition=0, on_delivery=done)
            producer.poll(0.005)
        assert producer.flush(60) == 0

    threads = [threading.Thread(target=direct, args=(b"direct-%d" % at, each)) for at, each in enumerate(stores)]
    threads.append(threading.Thread(target=through_broker))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(told) == 300
    found = stored(stores[0])
    for name in (b"direct-0", b"direct-1", b"broker"):
        own = [int(value.split()[1]) for value in found if value.startswith(name)]
        assert own == list(range(300))
    assert len(found) == 900
    assert consumed(broker, 900) == found
