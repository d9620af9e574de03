"""Where logs begin and end: asked of a broker that is slow, and of topics that are not there."""

from __future__ import annotations

import signal
import threading

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

import penstock
from conftest import BrokerFactory
from penstock.sdk.kafka.list_offsets import list_offsets
from support.receiving import create
from support.waiting import PATIENCE_S

SLOW_S = 6.0
"""Longer than one try."""


def latest() -> OffsetSpec:
    spec: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return spec


def test_a_broker_that_is_slow_is_waited_for(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, topic)
    with penstock.Client(broker.kafka) as client:
        client.send(topic, b"value")
    broker.signal(signal.SIGSTOP)
    waking = threading.Timer(SLOW_S, broker.signal, (signal.SIGCONT,))
    waking.start()
    try:
        assert list_offsets(admin, {TopicPartition(topic, 0): latest()}, PATIENCE_S).all() == {
            TopicPartition(topic, 0): 1
        }
    finally:
        waking.join()


def test_what_is_not_there_is_refused_and_the_rest_is_told(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, topic)
    here, nowhere = TopicPartition(topic, 0), TopicPartition(topic, 7)
    found = list_offsets(admin, {here: latest(), nowhere: latest()}, PATIENCE_S)
    assert found.offsets == {here: 0}
    assert found.errors[nowhere].args[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(KafkaException):
        found.all()


def test_a_partition_that_is_asked_alone_and_is_not_there_is_refused_at_once(
    new_broker: BrokerFactory, topic: str
) -> None:
    """Without any leader to ask, librdkafka has the same error for these as for a partition that has no leader now."""
    broker = new_broker()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, topic)
    for nowhere in (TopicPartition(topic, 7), TopicPartition(f"{topic}-missing", 0)):
        found = list_offsets(admin, {nowhere: latest()}, PATIENCE_S)
        assert found.errors[nowhere].args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert set(admin.list_topics(timeout=PATIENCE_S).topics) == {topic}
