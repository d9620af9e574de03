"""The reader that reads all the time, when its client library does not."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from support import steady_reader
from support.broker_process import BrokerProcess
from support.steady_reader import SteadyReader
from support.waiting import PATIENCE_S, until
from support.wire import Wire


def send(broker: BrokerProcess, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in numbers:
        producer.produce(topic, str(number), partition=number % 2)
    assert producer.flush(PATIENCE_S) == 0


def test_a_client_that_tells_nothing_of_itself_is_replaced_and_nothing_is_missed(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steady_reader, "_SILENT_S", 1.0)
    with Wire(broker.address) as wire:
        wire.create_topic(topic, 2)
    send(broker, topic, range(100))
    reader = SteadyReader(broker.kafka, topic, 2, "reader", {"statistics.interval.ms": 0})
    reader.start()
    try:
        reader.wait_for_all([(number % 2, number // 2, number) for number in range(100)], PATIENCE_S)
        until(lambda: reader.hung_clients >= 1, "the client is taken for stuck")
        send(broker, topic, range(100, 200))
        found = sorted((number % 2, number // 2, number) for number in range(200))
        reader.wait_for_all(found, PATIENCE_S)
        reader.compare(found)
    finally:
        reader.stop()
    assert not reader.violations
