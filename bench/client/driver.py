"""What a load needs from a protocol; each protocol's own words stay in its module."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

STAMP = struct.Struct("<qq")  # sequence number, nanoseconds of CLOCK_MONOTONIC (one clock for all processes)
LAST = -1  # the sequence number that ends a paced stream


class DriverError(Exception):
    """Messages were refused or lost, or did not come in time."""


class NotReady(Exception):
    """The server answered, but not yet with what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How a producer sends; protocols without batches know only the request window."""

    acks: str = "1"
    idempotent: bool = False
    batch_bytes: int = 1_000_000
    linger_ms: int = 5
    one_per_request: bool = False
    in_flight: int | None = None
    codec: str = "none"


class Publisher(Protocol):
    """One producing connection to one topic."""

    def connect(self) -> None:
        """Be ready to send before a clock starts."""
        ...

    def prepare(self, pool: bytes, size: int) -> None:
        """Make the messages of `size` bytes that `send_many` repeats."""
        ...

    def send_many(self, count: int) -> None:
        """Send prepared messages; may return before they are acknowledged."""
        ...

    def send(self, body: bytes) -> None:
        """Send one message without waiting for its acknowledgement."""
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait until everything sent is acknowledged; raise if anything was lost."""
        ...

    def close(self) -> None: ...


class Subscriber(Protocol):
    """One consuming connection to one topic, from its beginning."""

    def connect(self) -> None:
        """Be ready to read before a clock starts."""
        ...

    def count(self, expected: int, timeout_s: float) -> None:
        """Receive `expected` messages and throw them away."""
        ...

    def each(self, on_body: Callable[[bytes], bool], timeout_s: float) -> None:
        """Hand over the first bytes of each message as it comes, until told to stop or out of time."""
        ...

    def close(self) -> None: ...


class Dialect(Protocol):
    """One protocol."""

    @property
    def client(self) -> str:
        """What sends and receives, for the report."""
        ...

    def create(self, address: str, topic: str, partitions: int, replicas: int = 1) -> None: ...

    def delete(self, address: str, topic: str) -> None: ...

    def publisher(self, address: str, topic: str, partitions: int, load: Load) -> Publisher: ...

    def subscriber(self, address: str, topic: str, partitions: int, size: int) -> Subscriber: ...

    def probe(self, address: str) -> None:
        """Publish one message and have it acknowledged, or raise OSError or NotReady."""
        ...

    def idle_connection(self, address: str) -> socket.socket:
        """A connection that has introduced itself and then stays silent."""
        ...


def endpoint(address: str) -> tuple[str, int]:
    """`host:port` taken apart."""
    host, _, port = address.rpartition(":")
    return host, int(port)
