"""Prepared requests over a bare socket, and answers that are thrown away: a client that costs next to nothing.

What a broker does for such a client is the broker's own speed, where librdkafka may be the limit. All answers of a
conversation have one size, so a count of received bytes is a count of answers. Large answers are dropped inside the
kernel (`MSG_TRUNC`), so receiving them copies nothing.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from bench.client.driver import DriverError, endpoint
from bench.client.wire import connected

_RECEIVE_BYTES = 1 << 20
_PATIENCE_S = 60.0
_LOOK_EVERY = 16
"""Answers between two looks at the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """What is sent, in turn, and what comes back for each frame."""

    frames: Sequence[bytes]
    answer_bytes: int
    introduction: bytes = b""
    """Sent once, before the first frame; nothing comes back for it."""
    in_flight: int = 1
    error_at: int | None = None
    """Where in an answer the two bytes of an error code are; None: answers are dropped unseen."""


class Conversation:
    """One connection."""

    def __init__(self, address: str, talk: Talk) -> None:
        self._talk = talk
        self._frames = cycle(talk.frames)
        self._link = connected(endpoint(address), _PATIENCE_S)
        self._link.sendall(talk.introduction)
        self._sent = 0
        self._answered = 0
        self._rest = 0
        """Bytes of an answer that is not complete."""
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._buffer)

    def close(self) -> None:
        self._link.close()

    def run(self, count: int, limit_s: float = float("inf")) -> int:
        """Sends `count` frames, fewer if the time is over before; returns how many, when all are answered."""
        begun = self._answered
        end, until = begun + count, time.monotonic() + limit_s
        while self._answered < end:
            self._send(min(end, self._answered + self._talk.in_flight) - self._sent)
            self._receive()
            if (self._answered - begun) % _LOOK_EVERY < self._talk.in_flight and time.monotonic() > until:
                end = min(end, self._sent)
        return self._answered - begun

    def _send(self, count: int) -> None:
        if count == 1:
            self._link.sendall(next(self._frames))
        elif count > 1:
            self._link.sendall(b"".join(next(self._frames) for _ in range(count)))
        self._sent += max(0, count)

    def _receive(self) -> None:
        if self._talk.error_at is None:
            received = self._link.recv_into(self._buffer, _RECEIVE_BYTES, socket.MSG_TRUNC)
        else:
            received = self._link.recv_into(self._view[self._rest :])
        if not received:
            raise DriverError("the server has closed the connection")
        size = self._talk.answer_bytes
        whole, rest = divmod(self._rest + received, size)
        at = self._talk.error_at
        if at is not None:
            if any(self._buffer[at : whole * size : size]) or any(self._buffer[at + 1 : whole * size : size]):
                raise DriverError("the server has refused a request")
            self._buffer[:rest] = self._buffer[whole * size : whole * size + rest]
        self._answered += whole
        self._rest = rest
