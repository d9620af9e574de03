"""The socket of a connection: bytes in, parts of responses out. `tls` takes its place where a listener
encrypts.

Parts in memory are sent as they are, ranges of files by the kernel from its page cache (sendfile).
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Protocol

from penstock.parts import Part

_SEND_BYTES_A_TURN = 4 << 20
"""So that one fast reader does not keep the others waiting."""


class Transport(Protocol):
    """What a connection needs of its socket."""

    unsent: deque[Part]
    """Parts that `send` sends, in order; the connection appends them."""
    is_established: bool
    """Whether requests can come: nothing has to be agreed on with the client any more."""
    failure: str | None
    """Why it was not established."""
    wants_write: bool
    """It has to wait until the socket takes bytes before it can receive any."""

    @property
    def has_buffered(self) -> bool:
        """Whether there are bytes to receive of which the socket does not tell."""
        ...

    def fileno(self) -> int: ...

    def receive_into(self, space: memoryview) -> int | None:
        """How many bytes came: 0 if none will come any more, None if there are none now."""
        ...

    def send(self) -> None:
        """Sends until nothing is left, the peer takes no more, or it is the turn of others; OSError if it is gone."""
        ...

    def close(self) -> None: ...


class SocketTransport:
    """A non-blocking TCP socket."""

    is_established = True
    failure: str | None = None
    wants_write = False
    has_buffered = False

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self.unsent: deque[Part] = deque()
        self._sent = 0
        """Bytes of the first of them that are gone already."""

    def fileno(self) -> int:
        return self._fd

    def receive_into(self, space: memoryview) -> int | None:
        try:
            return self._sock.recv_into(space)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return 0

    def send(self) -> None:
        unsent, sock, allowed = self.unsent, self._sock, _SEND_BYTES_A_TURN
        try:
            while unsent and allowed > 0:
                part = unsent[0]
                if isinstance(part, bytes):
                    size = len(part)
                    rest = memoryview(part)[self._sent :] if self._sent else part
                    count = sock.send(rest, socket.MSG_MORE if len(unsent) > 1 else 0)
                else:
                    size = part.size
                    count = os.sendfile(self._fd, part.fileno(), part.position + self._sent, size - self._sent)
                    if count == 0:
                        raise OSError("a file ended while it was being sent")
                allowed -= count
                self._sent += count
                if self._sent == size:
                    unsent.popleft()
                    self._sent = 0
        except (BlockingIOError, InterruptedError):
            pass

    def close(self) -> None:
        self.unsent.clear()
        self._sock.close()
