"""A database group that is drained while clients use what is in it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.sql.passwords import new_key
from support.broker_process import BrokerProcess
from support.commands import said, told
from support.programs import PENSTOCK, run
from support.stores import NewDatabase
from support.waiting import PATIENCE_S, until

from .conftest import NewSqlBroker

TOPIC = "orders"
PARTITIONS = 6
DELAYED_MS = 3_000


@pytest.fixture(params=[1, 2], ids=["one broker", "two brokers"])
def brokers(
    request: pytest.FixtureRequest, sql_broker: NewSqlBroker, new_database: NewDatabase, tmp_path: Path
) -> Iterator[list[BrokerProcess]]:
    """With a second database beside the default one."""
    key_file = tmp_path / "key"
    key_file.write_text(new_key())
    key_file.chmod(0o600)
    settings = {"sql.key_file": str(key_file), "cluster.lease_ms": 3000}
    url = new_database("mariadb")
    started = [sql_broker(url, number, **settings) for number in range(1, request.param + 1)]
    second = new_database("mariadb")
    said(run([PENSTOCK, "dbnode", "add", "second", "-b", started[0].kafka], env={"PENSTOCK_DATABASE_SERVERS": second}))
    yield started


def partitions_in(broker: BrokerProcess, group: str) -> int:
    listed = told(run([PENSTOCK, "dbnode", "list", "--json", "-b", broker.kafka]))
    return int(next(each for each in listed if each["group"] == group)["partitions"])


class Sending:
    """An idempotent producer that sends numbers to all partitions until it is told to stop."""

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        self.acknowledged: list[tuple[int, int]] = []
        self.failed: list[KafkaError] = []
        self._servers = ",".join(broker.kafka for broker in brokers)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, b"%d" % number, partition=partition, on_delivery=self._report)
            number += 1
            producer.poll(0.005)
        assert producer.flush(PATIENCE_S) == 0

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append((message.partition() or 0, int(message.value() or b"")))
        else:
            self.failed.append(error)


def read(broker: BrokerProcess, count: int) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "all", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: list[tuple[int, int]] = []

    def has_all() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found.append((message.partition() or 0, int(message.value() or b"")))
        return len(found) >= count

    until(has_all, "all is read")
    consumer.close()
    return found


def begin(brokers: list[BrokerProcess]) -> Sending:
    """Half of the topic is in the second database, every partition has a delayed record, and records are sent."""
    admin = AdminClient({"bootstrap.servers": brokers[0].kafka})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_S)
    until(lambda: partitions_in(brokers[0], "second") == PARTITIONS // 2, "half of the partitions are in the second")
    delayed = Producer({"bootstrap.servers": brokers[0].kafka})
    for partition in range(PARTITIONS):
        delayed.produce(TOPIC, b"-1", partition=partition, headers={"penstock-delay": str(DELAYED_MS)})
    assert delayed.flush(PATIENCE_S) == 0
    sending = Sending(brokers)
    until(lambda: len(sending.acknowledged) > 500, "records are acknowledged")
    return sending


def end(brokers: list[BrokerProcess], sending: Sending) -> None:
    """The second database is empty, producers go on, and what they were told of is there once and in order."""
    assert partitions_in(brokers[0], "second") == 0
    before = len(sending.acknowledged)
    until(lambda: len(sending.acknowledged) > before + 500, "producers go on")
    sending.stop()
    assert not sending.failed
    said(run([PENSTOCK, "dbnode", "remove", "second", "-b", brokers[0].kafka]))
    expected = Counter([*sending.acknowledged, *((partition, -1) for partition in range(PARTITIONS))])
    found = read(brokers[-1], expected.total())
    assert Counter(found) == expected
    for partition in range(PARTITIONS):
        numbers = [number for at, number in found if at == partition and number >= 0]
        assert numbers == sorted(numbers)


def test_a_drained_group_is_empty_and_nothing_is_lost_or_doubled(brokers: list[BrokerProcess]) -> None:
    sending = begin(brokers)
    said(run([PENSTOCK, "dbnode", "drain", "second", "--wait", "-b", brokers[0].kafka]))
    end(brokers, sending)


@pytest.mark.parametrize("brokers", [2], indirect=True)
def test_a_broker_that_is_killed_while_it_moves_partitions_loses_nothing(brokers: list[BrokerProcess]) -> None:
    sending = begin(brokers)
    said(run([PENSTOCK, "dbnode", "drain", "second", "-b", brokers[0].kafka]))
    brokers[1].kill()
    until(lambda: partitions_in(brokers[0], "second") == 0, "all partitions have moved")
    brokers[1].start()
    end(brokers, sending)
