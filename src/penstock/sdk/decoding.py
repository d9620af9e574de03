"""From a message as confluent-kafka gives it to our own value."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from penstock.sdk.ports import Received


def received_of(message: Message) -> Received:
    """A message without an error, as a value."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    # The library types every part as perhaps absent; of a message without an error none is.
    assert topic is not None and partition is not None and offset is not None
    kind, timestamp_ms = message.timestamp()
    headers: Any = message.headers() or ()
    return Received(
        topic,
        partition,
        offset,
        message.value(),
        message.key(),
        tuple(headers),
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
    )
