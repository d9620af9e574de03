"""Load over a bare socket, for protocols whose Python clients would be slower than their brokers.

A publisher sends chunks encoded once and keeps a window of unacknowledged messages; a subscriber finds the
bytes that stand before every body and counts them. Bodies are random, so none holds them by chance.
"""

from __future__ import annotations

import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from bench.client.driver import STAMP, DriverError, Load, endpoint

CHUNK = 200
WINDOW = 4000
RECEIVE_BYTES = 1 << 20
PATIENCE_S = 60.0


def connect(address: str) -> socket.socket:
    """A blocking connection without Nagle's delay."""
    link = socket.create_connection(endpoint(address), 10)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def receive(link: socket.socket) -> bytes:
    """What has come; a closed connection is an error."""
    data = link.recv(RECEIVE_BYTES)
    if not data:
        raise ConnectionResetError("closed by the server")
    return data


class RawPublisher(ABC):
    """Sends within a window; how a message and its acknowledgement look is the protocol's."""

    def __init__(self, link: socket.socket, load: Load) -> None:
        self._link = link
        self._chunk_size = 1 if load.one_per_request else CHUNK
        self._window = load.in_flight or WINDOW
        self._sent = 0
        self._acknowledged = 0
        self._chunk = b""
        self._one = b""

    @abstractmethod
    def encode(self, body: bytes) -> bytes:
        """One publish request."""

    @abstractmethod
    def acknowledged(self, data: bytes) -> int:
        """How many messages these received bytes acknowledge; keeps what is cut off for the next call."""

    def connect(self) -> None:
        self._link.settimeout(PATIENCE_S)

    def prepare(self, pool: bytes, size: int) -> None:
        starts = ((index * 7919) % (len(pool) - size) for index in range(self._chunk_size))
        requests = [self.encode(pool[start : start + size]) for start in starts]
        self._one, self._chunk = requests[0], b"".join(requests)

    def send_many(self, count: int) -> None:
        left = count
        while left > 0:
            size = min(self._chunk_size, left)
            while self._sent + size - self._acknowledged > self._window:
                self._take()
            self._link.sendall(self._chunk if size == self._chunk_size else self._one * size)
            self._sent += size
            left -= size

    def send(self, body: bytes) -> None:
        self._link.sendall(self.encode(body))
        self._sent += 1
        while select.select([self._link], [], [], 0)[0]:
            self._take()

    def flush(self, timeout_s: float) -> None:
        self._link.settimeout(timeout_s)
        while self._acknowledged < self._sent:
            self._take()

    def close(self) -> None:
        self._link.close()

    def _take(self) -> None:
        self._acknowledged += self.acknowledged(receive(self._link))


class RawSubscriber(ABC):
    """Receives bodies of one known size."""

    def __init__(self, link: socket.socket, size: int) -> None:
        self._link = link
        self._size = size

    @abstractmethod
    def marker(self) -> bytes:
        """The bytes right before a body."""

    @abstractmethod
    def request(self, received: int, expected: int | None) -> None:
        """Ask for more if the protocol wants that; `expected` is None when messages are still being sent."""

    def connect(self) -> None:
        self._link.settimeout(PATIENCE_S)

    def count(self, expected: int, timeout_s: float) -> None:
        self._link.settimeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        marker = self.marker()
        received, rest = 0, b""
        self.request(0, expected)
        while received < expected:
            if time.monotonic() > deadline:
                raise DriverError(f"{received} of {expected} messages came in time")
            data = rest + receive(self._link)
            received += data.count(marker)
            # A marker cut in two is counted once, with its second half.
            rest = data[1 - len(marker) :]
            self.request(received, expected)

    def each(self, on_body: Callable[[bytes], bool], timeout_s: float) -> None:
        self._link.settimeout(timeout_s)
        marker = self.marker()
        data, received = b"", 0
        self.request(0, None)
        while True:
            at = data.find(marker)
            begin = at + len(marker)
            if at < 0 or len(data) < begin + self._size:
                data += receive(self._link)
                continue
            received += 1
            if not on_body(data[begin : begin + STAMP.size]):
                return
            data = data[begin + self._size :]
            self.request(received, None)

    def close(self) -> None:
        self._link.close()
