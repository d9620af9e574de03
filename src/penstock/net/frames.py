"""Cutting the bytes that a connection receives into request frames: i32 size, then that many bytes.

Rules:
- A frame is a view of the buffer that it was received into. It is valid until room is made for the next one.
- A connection begins with a small buffer of its own. What a larger frame needs beyond that comes out of the allowance
  of all connections; while there is none, nothing is received.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from penstock.errors import ProtocolError
from penstock.net.buffers import BASE_BYTES, Allowance

_SIZE = struct.Struct(">i")
_SIZE_BYTES = _SIZE.size
_MIN_FRAME_BYTES = 8
_READ_AHEAD_BYTES = 64 * 1024
_EAGER_BYTES = 1 << 20
"""A frame up to this size gets its whole buffer at once; a larger one only as its bytes arrive."""


class FrameBuffer:
    """The bytes of one connection that were received and not handled yet."""

    def __init__(self, allowance: Allowance, max_frame_bytes: int, on_granted: Callable[[], None]) -> None:
        """`on_granted` is called when there is room again, after `make_room` has said that there is none."""
        self._allowance = allowance
        self._max_frame_bytes = max_frame_bytes
        self._min_frame_bytes = _MIN_FRAME_BYTES
        self._on_granted = on_granted
        self._buffer: memoryview | None = None
        self._start = 0
        self._end = 0
        """The bytes of the buffer between these two are received and not handled yet."""
        self.borrowed = 0
        """Bytes of the buffer that come out of the allowance."""
        self.is_waiting = False
        """The next frame needs more of the allowance than there is."""

    def limit(self, max_frame_bytes: int, min_frame_bytes: int | None = None) -> None:
        """From the next frame on: the sizes that are allowed."""
        self._max_frame_bytes = max_frame_bytes
        self._min_frame_bytes = _MIN_FRAME_BYTES if min_frame_bytes is None else min_frame_bytes

    @property
    def is_empty(self) -> bool:
        return self._start == self._end

    @property
    def is_full(self) -> bool:
        return self._buffer is not None and self._end == len(self._buffer)

    def receive(self, receive_into: Callable[[memoryview], int | None]) -> int | None:
        """Has `receive_into` fill what is free; how many bytes that were, as it says."""
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = memoryview(bytearray(BASE_BYTES))
        count = receive_into(buffer[self._end :])
        if count:
            self._end += count
        return count

    def next_frame(self) -> memoryview | None:
        """The next frame if it is complete; ProtocolError if its size is not allowed."""
        start, end = self._start, self._end
        if end - start < _SIZE_BYTES:
            return None
        assert self._buffer is not None
        (size,) = _SIZE.unpack_from(self._buffer, start)
        if not self._min_frame_bytes <= size <= self._max_frame_bytes:
            raise ProtocolError(
                f"a request of {size} bytes; allowed are {self._min_frame_bytes} to {self._max_frame_bytes}"
            )
        start += _SIZE_BYTES
        if end - start < size:
            return None
        self._start = start + size
        return self._buffer[start : start + size]

    def put_back(self, frame: memoryview) -> None:
        """The frame that was given last is the next again."""
        self._start -= _SIZE_BYTES + len(frame)

    def make_room(self) -> bool:
        """Moves what is left to the front, or into a buffer that the next frame fits in; no frame is in use any more.

        False if the allowance is used up: nothing must be received until `on_granted` is called.
        """
        buffer = self._buffer
        if buffer is None:
            return True
        self.stop_waiting()
        left = self._end - self._start
        if left == 0:
            self._start = self._end = 0
            if self.borrowed and self._allowance.is_short:
                self.release()
            return True
        needed = self._wanted_bytes(buffer, left)
        if needed <= len(buffer):
            if self._start and (self._start + needed > len(buffer) or self._end == len(buffer)):
                buffer[:left] = buffer[self._start : self._end]
                self._start, self._end = 0, left
            return True
        extra = needed - BASE_BYTES - self.borrowed
        if extra > 0 and not self._allowance.take(extra):
            self.is_waiting = True
            self._allowance.wait(extra, self.borrowed, self._granted)
            return not self.is_waiting
        self.borrowed += max(0, extra)
        larger = memoryview(bytearray(needed))
        larger[:left] = buffer[self._start : self._end]
        self._buffer, self._start, self._end = larger, 0, left
        return True

    def shrink(self) -> None:
        """Gives back what large frames were given, if what is left needs it no more; no frame is in use any more."""
        buffer, left = self._buffer, self._end - self._start
        if buffer is None or not self.borrowed or left > BASE_BYTES:
            return
        kept = bytes(buffer[self._start : self._end])
        self.release()
        if kept:
            self._buffer = memoryview(bytearray(BASE_BYTES))
            self._buffer[:left] = kept
            self._end = left

    def stop_waiting(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            self._allowance.forget(self._granted)

    def release(self) -> None:
        """Gives all memory back; what was received is lost."""
        borrowed, self.borrowed = self.borrowed, 0
        self._buffer = None
        self._start = self._end = 0
        if borrowed:
            self._allowance.give_back(borrowed)

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
        self.is_waiting = False
        self.borrowed += count
        self._on_granted()
