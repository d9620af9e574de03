"""One client connection: bytes in, frames to the handler, answers out, on a raw non-blocking socket.

Rules:
- Requests of a connection are handled one after the other, as Kafka does, so answers keep their order. While one is
  being handled or its answer is not taken by the peer, nothing further is handled; what the peer sends meanwhile stays
  in the socket.
- A frame is handled where it was received. The handler may read and stamp it until its answer is there, and must not
  keep it.
- A request that does not have to wait is answered in the same turn of the loop (`eager`), several in one write.
- Whatever goes wrong with one connection ends that connection only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.errors import ProtocolError
from penstock.logs import fields
from penstock.net import eager
from penstock.net.buffers import BASE_BYTES, Allowance
from penstock.net.caller import Caller

logger = logging.getLogger(__name__)

Parts = list[Any]
"""An answer: bytes and ranges of files, in the order in which they go out."""

Handler = Callable[[memoryview, Caller], Coroutine[Any, Any, Parts]]

_SIZE = struct.Struct(">i")
_SIZE_BYTES = _SIZE.size
_MIN_FRAME_BYTES = 8
_READ_AHEAD_BYTES = 64 * 1024
_EAGER_BYTES = 1 << 20
"""A frame up to this size gets its whole buffer at once; a larger one only as its bytes arrive."""
_COALESCED_PARTS = 32
_SEND_BYTES_A_TURN = 4 << 20
"""So that one fast reader does not keep the others waiting."""


class Connection:
    """Reads frames, has them handled, writes the answers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        host: str,
        handler: Handler,
        allowance: Allowance,
        max_frame_bytes: int,
        now: Callable[[], float],
        on_close: Callable[[Connection], None],
    ) -> None:
        self.host = host
        self._caller = Caller(host)
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._handler = handler
        self._allowance = allowance
        self._max_frame_bytes = max_frame_bytes
        self._now = now
        self._on_close = on_close
        self._buffer: memoryview | None = None
        self._start = 0
        self._end = 0
        """The bytes of the buffer between these two are received and not handled yet."""
        self._borrowed = 0
        """Bytes of the buffer that come out of the allowance."""
        self._task: asyncio.Task[Parts] | None = None
        self._out: deque[Any] = deque()
        self._sent = 0
        """Bytes of the first part in `_out` that are gone already."""
        self._idle: asyncio.Future[None] | None = None
        self._is_reading = False
        self._is_writing = False
        self._is_waiting = False
        """The next request needs more of the allowance than there is; until then nothing is read."""
        self._is_closed = False
        self._last_heard = now()
        self._resume_reading()

    @property
    def is_idle(self) -> bool:
        return self._task is None and not self._out

    def when_idle(self) -> asyncio.Future[None]:
        """Done when the request that is being handled has been answered, or the connection is closed."""
        if self._idle is None:
            self._idle = self._loop.create_future()
        return self._idle

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._pause_reading()
        if self._is_writing:
            self._loop.remove_writer(self._fd)
        if self._task is not None:
            self._task.cancel()
        self._stop_waiting()
        self._out.clear()
        self._release_buffer()
        self._sock.close()
        self._tell_idle()
        self._on_close(self)

    def look_after(self, idle_before: float, stalled_before: float) -> None:
        """Called now and then: closes a connection that is silent, frees memory that is not used."""
        if self._last_heard < idle_before and self._task is None:
            self.close()
        elif self._is_waiting:
            return  # it is us who keep this one waiting
        elif self._start < self._end and self.is_idle and self._last_heard < stalled_before:
            # Half a request and then nothing: it holds memory that others may need.
            logger.info("connection closed: its request stalled", extra=fields(host=self.host))
            self.close()
        elif self._start == self._end and self.is_idle and self._last_heard < stalled_before:
            self._release_buffer()

    def _on_readable(self) -> None:
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = memoryview(bytearray(BASE_BYTES))
        try:
            count = self._sock.recv_into(buffer[self._end :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if count == 0:
            self.close()
            return
        self._last_heard = self._now()
        self._end += count
        if self._task is None and not self._is_writing:
            self._pump()
        if self._buffer is not None and self._end == len(self._buffer):
            # It has to wait for an answer: reading into no room would look like the peer's end.
            self._pause_reading()

    def _pump(self) -> None:
        """Handles what can be handled, sends what can be sent, and sees to it that the rest can arrive."""
        try:
            while self._task is None and not self._is_writing:
                frame = self._next_frame()
                if frame is None:
                    if not self._out:
                        break
                    self._send()
                    continue
                outcome = eager.start(self._loop, self._handler(frame, self._caller))
                if isinstance(outcome, asyncio.Task):
                    self._task = outcome
                    outcome.add_done_callback(self._on_handled)
                    if self._out:
                        self._send()
                    break
                self._out.extend(outcome)
                if len(self._out) >= _COALESCED_PARTS or (outcome and not isinstance(outcome[-1], bytes)):
                    self._send()
            if not self._is_closed and self._task is None:
                self._make_room()
                if self._idle is not None and not self._out:
                    self._tell_idle()
        except ProtocolError as error:
            logger.info("connection closed", extra=fields(host=self.host, reason=str(error)))
            if self._out:
                self._send()  # the answers to the requests before the bad one
            self.close()
        except Exception:
            logger.exception("connection closed after an error in the broker", extra=fields(host=self.host))
            self.close()

    def _tell_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _next_frame(self) -> memoryview | None:
        start, end = self._start, self._end
        if end - start < _SIZE_BYTES or self._is_closed:
            return None
        assert self._buffer is not None
        (size,) = _SIZE.unpack_from(self._buffer, start)
        if not _MIN_FRAME_BYTES <= size <= self._max_frame_bytes:
            raise ProtocolError(f"a request of {size} bytes; allowed are {_MIN_FRAME_BYTES} to {self._max_frame_bytes}")
        start += _SIZE_BYTES
        if end - start < size:
            return None
        self._start = start + size
        return self._buffer[start : start + size]

    def _make_room(self) -> None:
        """Nothing is being handled: moves what is left to the front, or into a buffer that the next frame fits in."""
        buffer = self._buffer
        if buffer is None:
            return
        self._stop_waiting()
        left = self._end - self._start
        if left == 0:
            self._start = self._end = 0
            if self._borrowed and self._allowance.is_short:
                self._release_buffer()
            self._resume_reading()
            return
        needed = self._wanted_bytes(buffer, left)
        if needed <= len(buffer):
            if self._start and (self._start + needed > len(buffer) or self._end == len(buffer)):
                buffer[:left] = buffer[self._start : self._end]
                self._start, self._end = 0, left
            self._resume_reading()
            return
        extra = needed - BASE_BYTES - self._borrowed
        if extra > 0 and not self._allowance.take(extra):
            self._pause_reading()
            self._is_waiting = True
            self._allowance.wait(extra, self._borrowed, self._granted)
            return
        self._borrowed += max(0, extra)
        larger = memoryview(bytearray(needed))
        larger[:left] = buffer[self._start : self._end]
        self._buffer, self._start, self._end = larger, 0, left
        self._resume_reading()

    def _wanted_bytes(self, buffer: memoryview, left: int) -> int:
        if left < _SIZE_BYTES:
            return BASE_BYTES
        frame = _SIZE.unpack_from(buffer, self._start)[0] + _SIZE_BYTES
        if frame <= BASE_BYTES:
            return BASE_BYTES
        if frame > _EAGER_BYTES:
            frame = min(frame, max(_EAGER_BYTES, 2 * left))
        return int(frame) + _READ_AHEAD_BYTES

    def _granted(self, count: int) -> None:
        self._is_waiting = False
        self._borrowed += count
        # Its time to send the rest begins now.
        self._last_heard = self._now()
        if self._task is None:
            self._make_room()

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._allowance.forget(self._granted)

    def _on_handled(self, task: asyncio.Task[Parts]) -> None:
        self._task = None
        if self._is_closed or task.cancelled():
            if not task.cancelled():
                task.exception()  # seen, so that it is not reported as lost
            self.close()
            return
        error = task.exception()
        if isinstance(error, ProtocolError):
            logger.info("connection closed", extra=fields(host=self.host, reason=str(error)))
            self.close()
        elif error is not None:
            logger.error("connection closed after an error in the broker", extra=fields(host=self.host), exc_info=error)
            self.close()
        else:
            self._last_heard = self._now()
            self._out.extend(task.result())
            self._pump()

    def _send(self) -> None:
        """Writes until everything is out or the peer cannot take more; then the loop calls again."""
        out, sock, allowed = self._out, self._sock, _SEND_BYTES_A_TURN
        try:
            while out and allowed > 0:
                part = out[0]
                if isinstance(part, bytes):
                    size = len(part)
                    rest = memoryview(part)[self._sent :] if self._sent else part
                    count = sock.send(rest, socket.MSG_MORE if len(out) > 1 else 0)
                else:
                    size = part.size
                    count = os.sendfile(self._fd, part.fileno(), part.position + self._sent, size - self._sent)
                    if count == 0:
                        raise OSError("a file ended while it was being sent")
                allowed -= count
                self._sent += count
                if self._sent == size:
                    out.popleft()
                    self._sent = 0
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            logger.debug("connection lost", extra=fields(host=self.host, error=str(error)))
            self.close()
            return
        if out and not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._fd, self._on_writable)
        elif not out and self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        self._last_heard = self._now()
        self._send()
        if not self._is_writing and not self._is_closed and self._task is None:
            self._pump()

    def _resume_reading(self) -> None:
        if not self._is_reading and not self._is_closed:
            self._is_reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def _release_buffer(self) -> None:
        borrowed, self._borrowed = self._borrowed, 0
        self._buffer = None
        self._start = self._end = 0
        if borrowed:
            self._allowance.give_back(borrowed)
