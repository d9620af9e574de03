"""Backup and restore as `docs/backup.md` describes them: a copied data folder is the whole broker."""

from __future__ import annotations

import shutil
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer

import penstock
from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.waiting import PATIENCE_S

TOPIC, GROUP = "accounts", "auditors"
RECORDS, READ, PARTITIONS = 1000, 400, 3
TIMERS = ("close-1", "close-2", "close-3")


def test_a_copy_of_the_folder_of_a_stopped_broker_has_everything(new_broker: BrokerFactory, tmp_path: Path) -> None:
    original = new_broker({"broker.default_partitions": PARTITIONS})
    fill(original.kafka)
    assert original.stop() == 0
    copy = BrokerProcess(tmp_path / "elsewhere")
    shutil.copytree(original.data, copy.data)
    try:
        copy.start()
        assert copy.kafka != original.kafka
        values = read(copy.kafka, "somebody-new")
        assert sorted(value or b"" for value in values) == sorted(b"%d" % number for number in range(RECORDS))
        assert len(read(copy.kafka, GROUP)) == RECORDS - READ
        with penstock.Client(copy.kafka) as client:
            assert sorted(waiting.timer_id or "" for waiting in client.timers(TOPIC)) == sorted(TIMERS)
        assert copy.stop() == 0
    finally:
        copy.kill()


def fill(bootstrap: str) -> None:
    """Records, messages for later, and a group that has read a part."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(TOPIC, value=b"%d" % number, key=b"%d" % number)
    for timer_id in TIMERS:
        producer.produce(TOPIC, value=timer_id, headers={"penstock-delay": "1h", "penstock-timer-id": timer_id})
    assert producer.flush(PATIENCE_S) == 0
    consumer = consumer_of(bootstrap, GROUP)
    taken = 0
    while taken < READ:
        taken += sum(message.error() is None for message in consumer.consume(READ - taken, timeout=PATIENCE_S))
    consumer.commit(asynchronous=False)
    consumer.close()


def read(bootstrap: str, group: str) -> list[bytes | None]:
    """Everything that a group has not read yet, up to the end of every partition."""
    consumer = consumer_of(bootstrap, group)
    values: list[bytes | None] = []
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(RECORDS, timeout=PATIENCE_S):
            error = message.error()
            if error is None:
                values.append(message.value())
            else:
                assert error.code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
    consumer.close()
    return values


def consumer_of(bootstrap: str, group: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([TOPIC])
    return consumer
