"""The transactional forwarder: what it has sent is known to its successor, and it sends nothing after that."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.bridge.forwarder import RefusedError, TransactionalForwarder
from penstock.bridge.progress import RowKey
from penstock.clock import SystemClock
from penstock.sdk.errors import TransactionError
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.ports import Outgoing
from support.bridged import collect, create_topics, values_of
from support.broker_process import BrokerProcess

TABLES = b"t" * 16


def forwarder(broker: BrokerProcess, topic: str) -> TransactionalForwarder:
    return TransactionalForwarder(ConnectionSettings(broker.kafka), topic, f"{topic}-progress", 1, SystemClock())


def keys(*numbers: int) -> list[RowKey]:
    return [RowKey(0, 1000, number) for number in numbers]


def test_a_successor_knows_what_was_sent_and_the_one_before_sends_nothing_more(
    broker: BrokerProcess, topic: str
) -> None:
    create_topics(broker.kafka, {topic: 1, f"{topic}-progress": 2})
    first, second = forwarder(broker, topic), forwarder(broker, topic)
    try:
        assert first.start(TABLES) == []
        for number in range(40):
            # More transactions than the first look back covers.
            first.forward([Outgoing(topic, b"%d" % number)], keys(number))
        assert second.start(TABLES) == keys(39)
        with pytest.raises(TransactionError):
            first.forward([Outgoing(topic, b"too late")], keys(40))
        second.forward([Outgoing(topic, b"40"), Outgoing(topic, b"41")], keys(40, 41))
        # One that was paused before it started fences its successor, and learns what that has sent.
        assert first.start(TABLES) == keys(40, 41)
        assert second.start(b"u" * 16) == [], "the tables are others"
    finally:
        first.close()
        second.close()
    arrived = collect(broker.kafka, topic, lambda found: len(found) >= 42, quiet_s=1)
    assert values_of(arrived) == [b"%d" % number for number in range(42)]


def test_a_refused_message_takes_the_others_of_its_transaction_with_it(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    create_topics(broker.kafka, {f"{topic}-progress": 2})
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "20000"})])[topic].result(30)
    one = forwarder(broker, topic)
    try:
        one.start(TABLES)
        one.forward([Outgoing(topic, b"before")], keys(1))
        with pytest.raises(RefusedError) as refused:
            one.forward([Outgoing(topic, b"good"), Outgoing(topic, b"x" * 50_000)], keys(2, 3))
        assert not refused.value.sent
        assert one.start(TABLES) == keys(1)
        one.forward([Outgoing(topic, b"good")], keys(2))
    finally:
        one.close()
    assert values_of(collect(broker.kafka, topic, lambda found: len(found) >= 2, quiet_s=1)) == [b"before", b"good"]
