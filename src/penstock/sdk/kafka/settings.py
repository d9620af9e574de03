"""librdkafka settings for what a client asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.durations import duration_ms
from penstock.sdk.send.sending_options import Sending

_MAX_MESSAGE_BYTES = 100_000_000
"""So that the broker's limit decides, not librdkafka's."""
_UNKNOWN_TOPIC_MS = 5_000
_ENDLESS = 0
_MIN_TRANSACTION_MS, _MAX_TRANSACTION_MS = 60_000, 900_000
"""How long a transaction may last: brokers allow no more, as a rule."""


def producer_settings(sending: Sending, *, endless: bool = False) -> dict[str, Any]:
    """The librdkafka settings. With `endless` librdkafka tries until the cluster accepts or refuses a message, and the
    caller bounds the number of messages.
    """
    messages, size = sending.memory_bounds(endless=endless)
    settings: dict[str, Any] = {
        "linger.ms": duration_ms(sending.linger),
        "batch.size": sending.batch_bytes,
        "compression.type": sending.compression,
        "queue.buffering.max.messages": messages,
        "queue.buffering.max.kbytes": min(max(1, size // 1024), 2**31 - 1),
        "message.max.bytes": _MAX_MESSAGE_BYTES,
        "request.timeout.ms": min(sending.try_timeout_ms, 900_000),
        "socket.timeout.ms": min(max(10, sending.try_timeout_ms), 300_000),
        "message.timeout.ms": _ENDLESS if endless else sending.patience_ms,
        "topic.metadata.propagation.max.ms": _UNKNOWN_TOPIC_MS,
        # Selects partitions as the Java client and most others do.
        "partitioner": "murmur2_random",
    }
    if sending.delivery == "at-most-once":
        return settings | {"acks": 0, "message.send.max.retries": 0}
    return settings | {"acks": "all", "enable.idempotence": True}


def transactional_settings(sending: Sending, transactional_id: str) -> dict[str, Any]:
    """The librdkafka settings of a transactional producer."""
    timeout_ms = min(max(sending.patience_ms, _MIN_TRANSACTION_MS), _MAX_TRANSACTION_MS)
    return producer_settings(replace(sending, delivery="at-least-once", transactional_id=None)) | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": min(sending.patience_ms, timeout_ms),
    }
