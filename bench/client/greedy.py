"""A producer that does not care what it is told: it sends as much as its sockets take, on several connections, and
never waits for the time that answers tell it to wait.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time

from bench.client.driver import DriverError, endpoint
from bench.client.job import READY, Job, Window
from penstock.records.records import Record, build_batch

CLIENT_ID = "bench-greedy"
CONNECTIONS = 4
_BATCH_BYTES = 100_000
_PRODUCE, _VERSION = 0, 8
_RECEIVE_BYTES = 1 << 16
_FIRST_WAIT_S = 60.0


def greedy(job: Job) -> dict[str, float]:
    """Batches that were taken within `limit_s`, as `count`, each of `bytes`.

    What a client may send before it is told to wait for the first time is not counted; then it says that it is ready.
    """
    frame = _produce_frame(job.topic)
    connections = [_Connection(job.address, frame, len(job.topic)) for _ in range(CONNECTIONS)]
    with selectors.DefaultSelector() as ready:
        for connection in connections:
            ready.register(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
        deadline = time.monotonic() + _FIRST_WAIT_S
        while not any(connection.told_ms for connection in connections):
            if time.monotonic() > deadline:
                raise DriverError(f"it was not told to wait within {_FIRST_WAIT_S:.0f} s")
            _exchange(ready, deadline)
        print(READY, flush=True)
        before = sum(connection.taken for connection in connections)
        window = Window(job.server_pids)
        deadline = time.monotonic() + job.limit_s
        while time.monotonic() < deadline:
            _exchange(ready, deadline)
    figures = window.close(sum(connection.taken for connection in connections) - before)
    for connection in connections:
        connection.socket.close()
    return {**figures, "bytes": float(_BATCH_BYTES)}


def _exchange(ready: selectors.BaseSelector, deadline: float) -> None:
    for key, events in ready.select(max(0.0, deadline - time.monotonic())):
        if events & selectors.EVENT_READ:
            key.data.receive()
        if events & selectors.EVENT_WRITE:
            key.data.send()


class _Connection:
    """The same request over and over."""

    def __init__(self, address: str, frame: bytes, name_length: int) -> None:
        self.socket = socket.create_connection(endpoint(address), 10)
        self.socket.setblocking(False)
        self.taken = 0
        """Batches that were acknowledged."""
        self.told_ms = 0.0
        """The longest time that it was told to wait."""
        self._frame = memoryview(frame)
        self._rest = self._frame
        self._received = bytearray()
        # Correlation id; topics, the name, partitions, index.
        self._code_at = 4 + 4 + 2 + name_length + 4 + 4

    def send(self) -> None:
        try:
            self._rest = self._rest[self.socket.send(self._rest) :] or self._frame
        except BlockingIOError:
            pass

    def receive(self) -> None:
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise DriverError("the server has closed the connection of the client that ignores throttling")
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            (code,) = struct.unpack_from(">h", self._received, 4 + self._code_at)
            if code:
                raise DriverError(f"produce answered {code}")
            # The throttle time ends the answer.
            (throttle_ms,) = struct.unpack_from(">i", self._received, size)
            self.told_ms = max(self.told_ms, float(throttle_ms))
            self.taken += 1
            del self._received[: 4 + size]


def _produce_frame(topic: str) -> bytes:
    """One batch for partition 0, with acks=1."""
    now_ms = time.time_ns() // 1_000_000
    batch = bytes(build_batch([Record(None, os.urandom(_BATCH_BYTES), timestamp_ms=now_ms)]))
    name = struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">hhii", -1, 1, 30_000, 1) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    client = struct.pack(">h", len(CLIENT_ID)) + CLIENT_ID.encode()
    head = struct.pack(">hhi", _PRODUCE, _VERSION, 7) + client
    return struct.pack(">i", len(head) + len(body)) + head + body
