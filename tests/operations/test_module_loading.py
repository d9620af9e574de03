"""What a broker loads: little before it serves, and nothing while a client waits for its first request of a kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from support.broker_process import BrokerProcess
from support.waiting import until
from support.wire import Wire

_IMPORTED = re.compile(r"^import time: +\d+ \| +\d+ \| +(\S+)$", re.MULTILINE)
_READY = "broker is ready"
_LAST = "prometheus_client.core"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """It says what it imports, and has loaded what is used later. Its interpreter began with nothing loaded."""
    process = BrokerProcess(tmp_path, env={"PYTHONPROFILEIMPORTTIME": "1"})
    try:
        process.start()
        until(lambda: _LAST in imported(process.log), "the broker has loaded what is used later")
        yield process
        assert process.stop() == 0
    finally:
        process.kill()


def imported(log: str) -> list[str]:
    """What import statements have loaded; the interpreter does not list what `import_module` was called for."""
    return _IMPORTED.findall(log)


def test_first_requests_of_a_kind_load_nothing(broker: BrokerProcess, topic: str) -> None:
    before = imported(broker.log)
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"first")
    producer.commit_transaction()
    for protocol in ("classic", "consumer"):
        read_one(broker, topic, protocol)
    assert "penstock_requests_total" in broker.get("/metrics")
    after = imported(broker.log)[len(before) :]
    # Python's codecs are loaded by name, each in a fraction of a millisecond.
    assert [name for name in after if not name.startswith("encodings.")] == []


def read_one(broker: BrokerProcess, topic: str, protocol: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": f"{topic}-{protocol}",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        message = until(lambda: consumer.poll(1.0), "a message")
        assert message is not None
        assert message.error() is None
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def test_a_broker_is_ready_before_it_loads_what_is_used_later(broker: BrokerProcess) -> None:
    start, ready, later = broker.log.partition(_READY)
    assert ready
    used_later = {
        "penstock.groups.shard",
        "penstock.transactions.shard",
        "penstock.protocol.messages.describe_configs",
        "prometheus_client",
    }
    assert used_later.isdisjoint(imported(start))
    assert used_later <= set(imported(later))


def test_a_plain_broker_loads_nothing_of_what_others_need(broker: BrokerProcess) -> None:
    of_others = {
        "penstock.cli.serve.supervisor",
        "penstock.cli.serve.console_child",
        "sqlalchemy",
        "kazoo",
        "confluent_kafka",
        "rich",
        "pydantic",
        "crc32c",
    }
    assert of_others.isdisjoint(imported(broker.log))
