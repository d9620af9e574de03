"""Many Kafka connections in one thread, each with at most so many requests on the way, to ask a broker for more than a
client library would.

Requests are encoded by Penstock's own codec, which Kafka reads as well as Penstock does. Frames are made before a clock
starts wherever what they say is known by then.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from bench.client.driver import DriverError, endpoint
from penstock.protocol.apis import Api
from penstock.protocol.decoding import decode
from penstock.protocol.encoding import encode

_SIZE = struct.Struct(">i")
_RECEIVE_BYTES = 1 << 18
CORRELATION_ID = 7
RETRY_S = 0.005  # until a member asks again that has not heard of the change it expects

Answered = Callable[[memoryview], None]


def request(api: Api, version: int, message: object) -> bytes:
    """A whole request frame; answers come in order, so one correlation id does for all."""
    header = struct.pack(">hhih5s", api.key, version, CORRELATION_ID, 5, b"bench")
    if version >= api.flexible_from:
        header += b"\0"
    body = encode(message, version)
    return _SIZE.pack(len(header) + len(body)) + header + body


def answer(api: Api, version: int, frame: memoryview) -> Any:
    """The response in a frame without its size."""
    return decode(api.response, version, frame, 5 if version >= api.flexible_from else 4)[0]


class Line:
    """One connection; answers are handed over in the order of the requests."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._waiting: deque[Answered] = deque()
        self._received = bytearray()

    def send(self, frame: bytes, answered: Answered) -> None:
        """Requests are small and few, so they fit into the socket's buffer at once."""
        self._waiting.append(answered)
        if self.link.send(frame) != len(frame):
            raise DriverError("a request did not fit into the socket's buffer")

    def receive(self) -> None:
        """Hand over every whole answer that has come."""
        part = self.link.recv(_RECEIVE_BYTES)
        if not part:
            raise DriverError("a connection was closed by the server")
        self._received += part
        at = 0
        received = self._received
        while len(received) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(received, at)
            end = at + _SIZE.size + size
            if len(received) < end:
                break
            frame = memoryview(bytes(received[at + _SIZE.size : end]))
            at = end
            self._waiting.popleft()(frame)
        del received[:at]


class Exchange:
    """The connections, and what is to be sent later."""

    def __init__(self, address: str) -> None:
        self._address = endpoint(address)
        self._selector = selectors.DefaultSelector()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def open(self) -> Line:
        link = socket.create_connection(self._address, 10)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setblocking(False)
        line = Line(link)
        self._selector.register(link, selectors.EVENT_READ, line)
        return line

    def close(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._selector.unregister(line.link)
            line.link.close()

    def close_all(self) -> None:
        self.close([key.data for key in self._selector.get_map().values()])
        self._selector.close()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._later, (time.monotonic() + seconds, self._count, action))

    def ask(self, line: Line, api: Api, version: int, message: object, limit_s: float = 30) -> Any:
        """One request and its answer, for what no clock is running for."""
        found: list[Any] = []
        line.send(request(api, version, message), lambda frame: found.append(answer(api, version, frame)))
        self.run_until(lambda: bool(found), limit_s)
        return found[0]

    def run_until(self, done: Callable[[], bool], limit_s: float) -> None:
        """Receive and send until `done`, which is asked after every answer."""
        deadline = time.monotonic() + limit_s
        while not done():
            now = time.monotonic()
            if now > deadline:
                raise DriverError(f"not done within {limit_s:g} s")
            while self._later and self._later[0][0] <= now:
                heapq.heappop(self._later)[2]()
            patience = min(self._later[0][0] if self._later else deadline, deadline) - now
            for key, _ in self._selector.select(max(0.0, patience)):
                key.data.receive()
