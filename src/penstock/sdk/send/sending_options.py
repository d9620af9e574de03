"""How a client sends, and what it does with messages while the cluster is unreachable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from penstock.durations import Duration, duration_ms
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.validation import check_whole_number

Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]
"""The delivery guarantee of a client."""
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

_MIB = 1024 * 1024
_MAX_TIMEOUT_MS = 2**31 - 1
_MAX_LINGER_MS = 900_000
_MAX_MESSAGES = 10_000_000
_MAX_BYTES = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Keep messages in memory while the cluster is unreachable.

    When the memory is full, `send` waits for room until its tries are used up, and `send_soon` fails with
    `BufferFullError`. A message whose tries are used up fails with `SendError`.

    Args:
        messages: The largest number of messages in memory.
        bytes: The largest size of their keys and values together.
    """

    messages: int = 100_000
    bytes: int = 64 * _MIB

    def __post_init__(self) -> None:
        _check_bounds("Keep", self.messages, self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Keep messages in memory while the cluster is unreachable, and drop what does not fit.

    When the memory is full, `send` and `send_soon` fail at once with `BufferFullError`. `client.counters.dropped`
    counts these messages and those whose tries are used up. Use it when a message is not worth waiting for.

    Args:
        messages: The largest number of messages in memory.
        bytes: The largest size of their keys and values together.
    """

    messages: int = 100_000
    bytes: int = 64 * _MIB

    def __post_init__(self) -> None:
        _check_bounds("Drop", self.messages, self.bytes)


@dataclass(frozen=True, slots=True)
class Spill:
    """Keep messages in memory while the cluster is unreachable, then in files.

    When the memory is full, or the first message has used up its tries, the client writes all messages to files in
    order, and sends them from there once the cluster is back. If the process ends first, the next client that opens the
    folder sends them. One client at a time can open a folder.

    `send` returns once its message is on disk (`Receipt.is_spilled`). Messages in transit when the cluster became
    unreachable, or when the process was killed, may arrive twice.

    Args:
        folder: The folder for the files; created if it does not exist.
        bytes: The largest size of the folder. Beyond, sends fail with `BufferFullError`.
        memory_messages: The largest number of messages in memory.
        memory_bytes: The largest size of their keys and values together.
    """

    folder: str | Path
    bytes: int = 1024 * _MIB
    memory_messages: int = 100_000
    memory_bytes: int = 64 * _MIB

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path) or not str(self.folder):
            raise InvalidInputError(f"Spill: folder must be a path, not {self.folder!r}")
        _check_bounds("Spill", self.memory_messages, self.memory_bytes)
        _check_bounds("Spill", 1, self.bytes)


WhenAway = Keep | Spill | Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How a client sends.

    Raises:
        InvalidInputError: A value is invalid, or two values do not work together.

    Example:
        ```python
        sending = penstock.Sending(linger="20ms", compression="lz4", when_away=penstock.Spill("spill"))
        client = penstock.Client(sending=sending)
        ```
    """

    delivery: Delivery = "at-least-once"
    """`"at-least-once"`: all in-sync replicas have the message, and a repeated try is stored once. `"at-most-once"`: no
    acknowledgement, no retries. `"exactly-once"`: in transactions."""
    linger: Duration = "5ms"
    """How long a message may wait for others, so that they are sent together."""
    batch_bytes: int = 1_000_000
    """The largest size of a batch."""
    compression: Compression = "none"
    """The codec for batches."""
    tries: int = 5
    """How many times `try_timeout` may pass before a message fails."""
    try_timeout: Duration = "10s"
    """The timeout of one try. Within `tries` times this, the client repeats retriable errors."""
    transactional_id: str | None = None
    """With exactly-once: the id of this sender. A new client with the same id aborts what the previous one left open,
    and fences it. Default: a random id."""
    when_away: WhenAway = field(default_factory=Keep)
    """What to do while the cluster is unreachable: `Keep()`, `Drop()` or `Spill(folder)`."""

    def __post_init__(self) -> None:
        _check_word("delivery", self.delivery, get_args(Delivery))
        _check_word("compression", self.compression, get_args(Compression))
        if not 0 <= _ms("linger", self.linger) <= _MAX_LINGER_MS:
            raise InvalidInputError(f"linger must be at most {_MAX_LINGER_MS} ms, not {self.linger!r}")
        check_whole_number("batch_bytes", self.batch_bytes, 1)
        check_whole_number("tries", self.tries, 1)
        if not 1 <= _ms("try_timeout", self.try_timeout) <= _MAX_TIMEOUT_MS // self.tries:
            raise InvalidInputError(
                f"try_timeout must be at least 1 ms, and tries * try_timeout at most 24 days, not {self.try_timeout!r}"
            )
        if not isinstance(self.when_away, WhenAway):
            raise InvalidInputError(
                f"when_away must be penstock.Keep(), penstock.Drop() or penstock.Spill(folder), not {self.when_away!r}"
            )
        if self.delivery != "at-least-once" and isinstance(self.when_away, Spill):
            raise InvalidInputError(f"Spill cannot be combined with {self.delivery}: it delivers at least once")
        if self.transactional_id is not None and self.delivery != "exactly-once":
            raise InvalidInputError(f"transactional_id requires exactly-once, not {self.delivery}")
        check_transactional_id(self.transactional_id)

    @property
    def try_timeout_ms(self) -> int:
        """`try_timeout` in milliseconds."""
        return duration_ms(self.try_timeout)

    @property
    def patience_ms(self) -> int:
        """How long the client tries to send a message."""
        tries = 1 if self.delivery == "at-most-once" else self.tries
        return tries * self.try_timeout_ms

    def memory_bounds(self, *, endless: bool = False) -> tuple[int, int]:
        """How many messages, and bytes of them, a producer keeps in memory. With `endless` its owner bounds them."""
        away = self.when_away
        if endless:
            return _MAX_MESSAGES, _MAX_BYTES
        return (away.memory_messages, away.memory_bytes) if isinstance(away, Spill) else (away.messages, away.bytes)


def check_transactional_id(given: object) -> None:
    """Raises `InvalidInputError` unless it is None or a non-empty text."""
    if given is not None and (not isinstance(given, str) or not given):
        raise InvalidInputError(f"transactional_id must be a non-empty text, not {given!r}")


def _ms(name: str, value: Duration) -> int:
    try:
        return duration_ms(value)
    except ValueError as error:
        raise InvalidInputError(f"{name}: {error}") from None


def _check_word(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInputError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def _check_bounds(name: str, messages: int, size: int) -> None:
    for bound, unit, max_count in ((messages, "messages", _MAX_MESSAGES), (size, "bytes", _MAX_BYTES)):
        if not isinstance(bound, int) or isinstance(bound, bool) or not 1 <= bound <= max_count:
            raise InvalidInputError(f"{name}: {unit} must be 1 to {max_count}, not {bound!r}")
