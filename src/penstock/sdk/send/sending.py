"""How a client sends, and what it does with messages while the cluster is away.

Values only; `producer_settings` turns them into those of librdkafka.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from penstock.durations import Duration, duration_ms
from penstock.sdk.errors import InvalidInputError

Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

_MIB = 1024 * 1024
_MAX_TIMEOUT_MS = 2**31 - 1
_MAX_LINGER_MS = 900_000
_MAX_MESSAGE_BYTES = 100_000_000
"""The broker's limit shall decide, not the library's."""
_UNKNOWN_TOPIC_MS = 5_000
_RECONNECT_MS = 1_000
_ENDLESS = 0
_LEAST_TRANSACTION_MS, _MOST_TRANSACTION_MS = 60_000, 900_000
"""How long a transaction may last: brokers allow no more, as a rule."""
_MOST_MESSAGES = 10_000_000
_MOST_BYTES = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """While the cluster is away messages are kept in memory, up to a bound; what comes then fails with
    `BufferFullError`. `send` waits for room as long as its tries last; `send_soon` does not wait.

    A message whose tries have passed fails with `SendError`.
    """

    messages: int = 100_000
    bytes: int = 64 * _MIB

    def __post_init__(self) -> None:
        _check_bounds("Keep", self.messages, self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """As `Keep`, but nobody waits for room: what finds the memory full fails at once with `BufferFullError`, and is
    counted (`client.counters.dropped`), as is what was kept until its tries had passed.

    For messages that are worth less than the time of whoever sends them.
    """

    messages: int = 100_000
    bytes: int = 64 * _MIB

    def __post_init__(self) -> None:
        _check_bounds("Drop", self.messages, self.bytes)


@dataclass(frozen=True, slots=True)
class Spill:
    """While the cluster is away messages are kept in memory; when that is full, or when the tries of the first of them
    have passed, they go to files, in order, and from there to the cluster once it is back: by this process, or by the
    next one that is given the folder. One process at a time has a folder.

    A message in the folder is durable on this machine: `send` returns (`Receipt.is_spilled`). When the folder has
    `bytes`, what comes fails with `BufferFullError`. Messages arrive at least once: those that were on their way when
    the cluster went away, or when a process was killed, may arrive twice.
    """

    folder: str | Path
    bytes: int = 1024 * _MIB
    memory_messages: int = 100_000
    memory_bytes: int = 64 * _MIB

    def __post_init__(self) -> None:
        _check_bounds("Spill", self.memory_messages, self.memory_bytes)
        _check_bounds("Spill", 1, self.bytes)


WhenAway = Keep | Spill | Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How a client sends."""

    delivery: Delivery = "at-least-once"
    """at-least-once: with all in-sync replicas, and a try that is repeated lands once; at-most-once: nobody is asked
    whether it has arrived, nothing is tried again; exactly-once: in transactions, seen by `read_committed` readers all
    or not at all."""
    linger: Duration = "5ms"
    """How long a message may wait for others, so that they go out together."""
    batch_bytes: int = 1_000_000
    compression: Compression = "none"
    tries: int = 5
    try_timeout: Duration = "10s"
    """A message fails when `tries` times this has passed; a broker that answers "not now" is asked again meanwhile."""
    transactional_id: str | None = None
    """With exactly-once: who sends. A new client of the same id ends what an earlier one has left unfinished, and keeps
    it from going on. Made up if not given."""
    when_away: WhenAway = field(default_factory=Keep)

    def __post_init__(self) -> None:
        _check_word("delivery", self.delivery, get_args(Delivery))
        _check_word("compression", self.compression, get_args(Compression))
        if not 0 <= _ms("linger", self.linger) <= _MAX_LINGER_MS:
            raise InvalidInputError(f"linger is {self.linger!r}: at most {_MAX_LINGER_MS} ms are allowed")
        if self.batch_bytes < 1:
            raise InvalidInputError(f"batch_bytes is {self.batch_bytes}: it must be at least 1")
        if self.tries < 1:
            raise InvalidInputError(f"tries is {self.tries}: it must be at least 1")
        if not 1 <= _ms("try_timeout", self.try_timeout) <= _MAX_TIMEOUT_MS // self.tries:
            raise InvalidInputError(
                f"try_timeout is {self.try_timeout!r}: it must be at least 1 ms, and all tries at most 24 days"
            )
        if self.delivery != "at-least-once" and isinstance(self.when_away, Spill):
            raise InvalidInputError(f"Spill does not go together with {self.delivery}: it delivers at least once")
        if self.transactional_id is not None and self.delivery != "exactly-once":
            raise InvalidInputError(f"transactional_id is for exactly-once, not for {self.delivery}")
        if self.transactional_id == "":
            raise InvalidInputError("transactional_id is empty")

    @property
    def try_timeout_ms(self) -> int:
        return duration_ms(self.try_timeout)

    @property
    def patience_ms(self) -> int:
        """How long a message is tried."""
        tries = 1 if self.delivery == "at-most-once" else self.tries
        return tries * self.try_timeout_ms


def producer_settings(sending: Sending, *, endless: bool = False) -> dict[str, Any]:
    """The settings of librdkafka; `endless`: messages are tried until the cluster takes or refuses them, and whoever
    sends them sees to it that they are not too many.
    """
    away = sending.when_away
    messages, size = (
        (away.memory_messages, away.memory_bytes) if isinstance(away, Spill) else (away.messages, away.bytes)
    )
    if endless:
        messages, size = _MOST_MESSAGES, _MOST_BYTES
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
        "reconnect.backoff.max.ms": _RECONNECT_MS,
        # The partition of a key as the Java client and most others choose it.
        "partitioner": "murmur2_random",
    }
    if sending.delivery == "at-most-once":
        return settings | {"acks": 0, "message.send.max.retries": 0}
    return settings | {"acks": "all", "enable.idempotence": True}


def transactional_settings(sending: Sending, transactional_id: str) -> dict[str, Any]:
    """The settings of a producer whose messages are seen all or not at all."""
    timeout_ms = min(max(sending.patience_ms, _LEAST_TRANSACTION_MS), _MOST_TRANSACTION_MS)
    return producer_settings(replace(sending, delivery="at-least-once", transactional_id=None)) | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": min(sending.patience_ms, timeout_ms),
    }


def _ms(name: str, value: Duration) -> int:
    try:
        return duration_ms(value)
    except ValueError as error:
        raise InvalidInputError(f"{name}: {error}") from None


def _check_word(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInputError(f"{name} is {value!r}: allowed are {', '.join(allowed)}")


def _check_bounds(name: str, messages: int, size: int) -> None:
    if not 1 <= messages <= _MOST_MESSAGES:
        raise InvalidInputError(f"{name} is bounded by {messages} messages: 1 to 10 million are allowed")
    if not 1 <= size <= _MOST_BYTES:
        raise InvalidInputError(f"{name} is bounded by {size} bytes: 1 byte to 1 TiB are allowed")
