"""Partitions are retired, and go, while real clients produce: no producer sees an error, and nothing is lost, doubled,
mixed up or put where it does not belong.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import OFFSET_END, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from support.broker_process import BrokerProcess
from support.confluent import consumer_of, error_of
from support.retiring import retire
from support.transactional import last_offset
from support.waiting import PATIENCE_S, until
from support.wire import Wire

NONE = 0
PARTITIONS = 5
RETIRED = {3: 0, 4: 1}
KEYS = [b"key-%d" % number for number in range(20)]
ACTIVE = [index for index in range(PARTITIONS) if index not in RETIRED]
MESSAGES = 1_500
REFRESH_MS = 200
"""So that clients see soon what has become of the topic."""
BURST = 50


class Ledger:
    """What a client was asked to send, and what it was told of it."""

    def __init__(self, *, is_keyed: bool) -> None:
        self._is_keyed = is_keyed
        self._numbers: Counter[bytes] = Counter()
        self._sent = 0
        self.acknowledged: list[bytes] = []
        self.errors: list[object] = []
        self.is_over = threading.Event()

    def next(self) -> tuple[bytes | None, bytes]:
        """The next key and value; a value is the key and a number that rises with each of that key."""
        key = KEYS[self._sent % len(KEYS)]
        self._sent += 1
        value = b"%s/%d" % (key, self._numbers[key])
        self._numbers[key] += 1
        return (key if self._is_keyed else None), value

    def burst(self) -> list[tuple[bytes | None, bytes]]:
        return [self.next() for _ in range(BURST)]

    def told(self, value: bytes, error: object = None) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged.append(value)


CONFLUENT = {"linger.ms": 1, "topic.metadata.refresh.interval.ms": REFRESH_MS}
OTHERS = {"linger_ms": 1, "metadata_max_age_ms": REFRESH_MS}

Client = Callable[[str, str, Ledger], None]
"""Sends bursts until the ledger is over, telling it the outcome of each message."""


def confluent(**settings: Any) -> Client:
    def run(kafka: str, topic: str, ledger: Ledger) -> None:
        producer = Producer({"bootstrap.servers": kafka} | CONFLUENT | settings)
        while not ledger.is_over.is_set():
            for key, value in ledger.burst():
                producer.produce(
                    topic, value, key, on_delivery=lambda error, message: ledger.told(message.value() or b"", error)
                )
            producer.poll(0)
            if len(producer) > 20 * BURST:
                producer.flush(PATIENCE_S)
        assert producer.flush(PATIENCE_S) == 0

    return run


def confluent_transactional(kafka: str, topic: str, ledger: Ledger) -> None:
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic} | CONFLUENT)
    producer.init_transactions(PATIENCE_S)
    told: list[tuple[bytes, object]] = []
    while not ledger.is_over.is_set():
        producer.begin_transaction()
        for key, value in ledger.burst():
            producer.produce(
                topic, value, key, on_delivery=lambda error, message: told.append((message.value() or b"", error))
            )
        producer.commit_transaction(PATIENCE_S)
        for value, error in told:
            ledger.told(value, error)
        told.clear()


def kafka_python(**settings: Any) -> Client:
    def run(kafka: str, topic: str, ledger: Ledger) -> None:
        producer = KafkaProducer(bootstrap_servers=kafka, acks="all", **OTHERS, **settings)
        while not ledger.is_over.is_set():
            sent = [(value, producer.send(topic, value, key)) for key, value in ledger.burst()]
            for value, future in sent:
                future.get(PATIENCE_S)
                ledger.told(value)
        producer.close()

    return run


def kafka_python_transactional(kafka: str, topic: str, ledger: Ledger) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka, transactional_id=topic, **OTHERS)
    producer.init_transactions()
    while not ledger.is_over.is_set():
        burst = ledger.burst()
        producer.begin_transaction()
        sent = [producer.send(topic, value, key) for key, value in burst]
        producer.commit_transaction()
        for (_, value), future in zip(burst, sent, strict=True):
            future.get(PATIENCE_S)
            ledger.told(value)
    producer.close()


def aiokafka(**settings: Any) -> Client:
    async def work(kafka: str, topic: str, ledger: Ledger) -> None:
        is_transactional = "transactional_id" in settings
        more = settings | ({"transactional_id": topic} if is_transactional else {})
        producer = AIOKafkaProducer(bootstrap_servers=kafka, **OTHERS, **more)
        await producer.start()
        try:
            while not ledger.is_over.is_set():
                burst = ledger.burst()
                if is_transactional:
                    await producer.begin_transaction()
                sent = [await producer.send(topic, value, key) for key, value in burst]
                await asyncio.gather(*sent)
                if is_transactional:
                    await producer.commit_transaction()
                for _, value in burst:
                    ledger.told(value)
        finally:
            await producer.stop()

    return lambda kafka, topic, ledger: asyncio.run(work(kafka, topic, ledger))


CLIENTS: dict[str, Client] = {
    "confluent": confluent(**{"enable.idempotence": False, "max.in.flight": 1}),
    "confluent-idempotent": confluent(**{"enable.idempotence": True}),
    "confluent-transactional": confluent_transactional,
    "kafka-python": kafka_python(enable_idempotence=False, max_in_flight_requests_per_connection=1),
    "kafka-python-idempotent": kafka_python(enable_idempotence=True),
    "kafka-python-transactional": kafka_python_transactional,
    "aiokafka": aiokafka(),
    "aiokafka-idempotent": aiokafka(enable_idempotence=True),
    "aiokafka-transactional": aiokafka(transactional_id=True),
}


def contents(broker: BrokerProcess, topic: str, partitions: list[int]) -> dict[int, list[bytes]]:
    """The committed values of these partitions, in order."""
    consumer = consumer_of(broker, **{"isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: dict[int, list[bytes]] = {partition: [] for partition in partitions}
    at_end: set[int] = set()

    def is_read() -> bool:
        for message in consumer.consume(1000, timeout=0.05):
            partition = message.partition()
            assert partition is not None
            if message.error() is None:
                found[partition].append(message.value() or b"")
            else:
                assert error_of(message) == KafkaError._PARTITION_EOF
                at_end.add(partition)
        return len(at_end) == len(partitions)

    until(is_read, f"reading {topic}")
    consumer.close()
    return found


def empty(broker: BrokerProcess, topic: str, partitions: Iterable[int]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    wanted = [TopicPartition(topic, partition, OFFSET_END) for partition in partitions]
    for done in admin.delete_records(wanted).values():
        done.result(PATIENCE_S)


@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "keyless"])
@pytest.mark.parametrize("name", CLIENTS)
def test_partitions_are_retired_and_go_under_load(
    eager_broker: BrokerProcess, topic: str, name: str, is_keyed: bool
) -> None:
    ledger = Ledger(is_keyed=is_keyed)
    failures: list[BaseException] = []

    def load() -> None:
        try:
            CLIENTS[name](eager_broker.kafka, topic, ledger)
        except BaseException as error:
            failures.append(error)

    def more(count: int, what: str) -> None:
        so_far = len(ledger.acknowledged)
        until(lambda: failures or len(ledger.acknowledged) >= so_far + count, f"messages {what}")

    thread = threading.Thread(target=load)
    with Wire(eager_broker.address) as wire:
        wire.create_topic(topic, partitions=PARTITIONS)
        thread.start()
        try:
            more(MESSAGES, "before the switch")
            assert retire(wire, topic, ",".join(f"{old}:{new}" for old, new in RETIRED.items())) == (NONE, None)
            ends = {index: last_offset(wire, (topic, index), 0) for index in RETIRED}
            more(MESSAGES, "after the switch")
            grown = {index: last_offset(wire, (topic, index), 0) - ends[index] for index in RETIRED}
            before_they_go = set(ledger.acknowledged)
            found = contents(eager_broker, topic, list(RETIRED))
            empty(eager_broker, topic, RETIRED)
            until(lambda: len(wire.metadata(topic)["partitions"]) == len(ACTIVE), "the partitions going")
            more(MESSAGES, "after they are gone")
        finally:
            ledger.is_over.set()
            thread.join(2 * PATIENCE_S)
    assert (failures, ledger.errors) == ([], [])

    # A transaction that was open at the switch leaves its end there, and nothing else.
    assert all(count <= ("transactional" in name) for count in grown.values()), grown
    found |= contents(eager_broker, topic, ACTIVE)
    assert all(found.values())
    assert sorted(value for values in found.values() for value in values) == sorted(ledger.acknowledged)
    if is_keyed:
        numbers: defaultdict[bytes, list[int]] = defaultdict(list)
        # What was sent to a retired partition before comes before what went to its successor after. When partitions
        # go, keys may move, as they do when partitions come.
        for partition in (*RETIRED, *ACTIVE):
            for value in found[partition]:
                if value in before_they_go:
                    key, _, number = value.partition(b"/")
                    numbers[key].append(int(number))
        assert set(numbers) == set(KEYS)
        assert [key for key, each in numbers.items() if each != sorted(each)] == []
