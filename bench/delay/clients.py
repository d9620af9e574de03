"""What the benchmark asks of a client: send messages for later, and say when each came."""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

BODY_BYTES = 100
DUE = struct.Struct(">q")
"""A message begins with the time at which it is due."""
PADDING = bytes(BODY_BYTES - DUE.size)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Received:
    """What came, in milliseconds: 8 bytes a figure, for there are many."""

    late_at_broker: array[int] = field(default_factory=lambda: array("q"))
    """From due to the time that the broker put on it."""
    late_at_client: array[int] = field(default_factory=lambda: array("q"))
    """From due to the moment at which the client had it."""
    first_ms: int = 1 << 62
    last_ms: int = 0

    def add(self, due_ms: int, broker_ms: int, client_ms: int) -> None:
        self.late_at_broker.append(broker_ms - due_ms)
        self.late_at_client.append(client_ms - due_ms)
        self.first_ms = min(self.first_ms, client_ms)
        self.last_ms = max(self.last_ms, client_ms)

    def __len__(self) -> int:
        return len(self.late_at_broker)


class TimerClient(Protocol):
    """One protocol with delayed messages; topics have one partition."""

    @property
    def client(self) -> str:
        """What sends and receives, for the report."""
        ...

    def create(self, address: str, topic: str) -> None:
        """Makes a topic; OSError or NotReady while the broker does not serve."""
        ...

    def send(self, address: str, topic: str, dues: Iterable[int], limit_s: float) -> int:
        """Sends a message for each due time; how many, all of them acknowledged."""
        ...

    def receive(self, address: str, topic: str, count: int, limit_s: float) -> Received:
        """Reads a topic from its beginning until so many have come."""
        ...
