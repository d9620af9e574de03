"""Frames out of what a connection receives, in whatever pieces it arrives."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.net.buffers import BASE_BYTES, Allowance
from penstock.net.frames import FrameBuffer

MAX_FRAME_BYTES = 4 << 20

sizes = st.one_of(st.integers(8, 64), st.integers(BASE_BYTES - 8, BASE_BYTES + 8), st.integers(8, 3 << 20))


def frame_of(size: int, number: int) -> bytes:
    return struct.pack(">i", size) + bytes([number % 256]) * size


def taking(data: bytes) -> Callable[[memoryview], int]:
    """A socket that has received this: it gives as much as there is room for."""

    def receive_into(space: memoryview) -> int:
        count = min(len(space), len(data))
        space[:count] = data[:count]
        return count

    return receive_into


def ignore() -> None:
    pass


@given(st.lists(sizes, min_size=1, max_size=5), st.integers(1, 300))
def test_frames_come_out_as_they_were_sent(wanted: list[int], pieces: int) -> None:
    allowance = Allowance(1 << 30)
    frames = FrameBuffer(allowance, MAX_FRAME_BYTES, ignore)
    sent = b"".join(frame_of(size, number) for number, size in enumerate(wanted))
    piece = len(sent) // pieces + 1
    found: list[bytes] = []
    at = 0
    while len(found) < len(wanted):
        count = frames.receive(taking(sent[at : at + piece]))
        assert count, "no room is left for what is still to come"
        at += count
        while (frame := frames.next_frame()) is not None:
            found.append(bytes(frame))
        assert frames.make_room()
    assert found == [frame_of(size, number)[4:] for number, size in enumerate(wanted)]
    assert frames.is_empty
    frames.release()
    assert allowance.used == 0


@pytest.mark.parametrize("size", [-1, 0, 7, MAX_FRAME_BYTES + 1])
def test_a_size_that_is_not_allowed_is_refused_before_anything_is_kept_for_it(size: int) -> None:
    allowance = Allowance(1 << 30)
    frames = FrameBuffer(allowance, MAX_FRAME_BYTES, ignore)
    frames.receive(taking(struct.pack(">i", size)))
    with pytest.raises(ProtocolError, match=f"a request of {size} bytes"):
        frames.next_frame()
    assert allowance.used == 0


def test_a_large_frame_waits_for_the_allowance_and_goes_on_when_there_is_some() -> None:
    allowance = Allowance(100_000)
    assert allowance.take(100_000)
    granted: list[bool] = []
    frames = FrameBuffer(allowance, MAX_FRAME_BYTES, lambda: granted.append(frames.make_room()))
    assert frames.receive(taking(frame_of(50_000, 1))) == BASE_BYTES
    assert frames.next_frame() is None
    assert not frames.make_room()
    assert frames.is_waiting and not granted
    allowance.give_back(100_000)
    assert granted == [True] and not frames.is_waiting
    frames.receive(taking(frame_of(50_000, 1)[BASE_BYTES:]))
    frame = frames.next_frame()
    assert frame is not None and bytes(frame) == frame_of(50_000, 1)[4:]
