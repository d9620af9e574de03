"""The progress record: which rows of a shard the last committed transaction has sent.

Bytes of its value, big-endian:

    version u8 | incarnation 16 bytes | rows u32 | slot i64, due i64, seq i64 for each row
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.clock import Clock
from penstock.sdk.errors import TopicError
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.kafka.librdkafka import reason_of
from penstock.sdk.kafka.unused_group import concerns_unused_group

INCARNATION_BYTES = 16

_HEAD = struct.Struct(">B16sI")
_ROW = struct.Struct(">qqq")
_VERSION = 1
_REQUEST_S = 10.0
_POLL_S = 0.2
_LOOK_BACK = 16
"""Offsets before the end at first; a transaction has two, its record and its marker."""


class RowKey(NamedTuple):
    """Which row of a shard; `(due_ms, seq)` is the order of delivery."""

    slot: int
    due_ms: int
    seq: int


def encode_progress(incarnation: bytes, keys: Sequence[RowKey]) -> bytes:
    return _HEAD.pack(_VERSION, incarnation, len(keys)) + b"".join(_ROW.pack(*key) for key in keys)


def decode_progress(value: bytes, incarnation: bytes) -> list[RowKey]:
    """The rows; none if the record is about tables that are no longer there."""
    version, of, rows = _HEAD.unpack_from(value)
    if version != _VERSION:
        raise TopicError(f"a progress record has version {version}: start a newer version of the bridge")
    if of != incarnation:
        return []
    return [RowKey(*_ROW.unpack_from(value, _HEAD.size + number * _ROW.size)) for number in range(rows)]


def last_progress(connection: ConnectionSettings, topic: str, partition: int, key: bytes, clock: Clock) -> bytes | None:
    """The last committed record with a key. No transaction of its writer is open: this comes after
    `init_transactions`.
    """
    settings = connection.settings_for(
        {
            "group.id": f"{topic}-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer = Consumer(settings)
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_REQUEST_S)
        back = _LOOK_BACK
        while True:
            start = max(low, high - back)
            found = _last_from(consumer, TopicPartition(topic, partition, start), key, clock)
            if found is not None or start == low:
                return found
            back *= 16
    except KafkaException as error:
        raise TopicError(f"could not read the progress in {topic}-{partition}: {reason_of(error)}") from None
    finally:
        consumer.close()


def _last_from(consumer: Consumer, place: TopicPartition, key: bytes, clock: Clock) -> bytes | None:
    consumer.assign([place])
    found: bytes | None = None
    silent_since_ms = clock.monotonic_ms()
    while True:
        message = consumer.poll(_POLL_S)
        if message is None:
            if clock.monotonic_ms() - silent_since_ms > _REQUEST_S * 1000:
                raise TopicError(f"could not read the progress in {place.topic}-{place.partition}: no broker answers")
            continue
        error = message.error()
        if error is None:
            found = message.value() if message.key() == key else found
            silent_since_ms = clock.monotonic_ms()
        elif error.code() == KafkaError._PARTITION_EOF:
            return found
        elif not error.retriable() and not concerns_unused_group(error):
            raise KafkaException(error)
