"""A socket takes parts in memory and parts of files, in order, however little the peer takes at a time."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.net.transport import SocketTransport
from penstock.storage.files import Files, FileSlice

Ends = tuple[SocketTransport, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with theirs:
        transport = SocketTransport(ours)
        yield transport, theirs
        transport.close()


def test_parts_arrive_in_order_however_little_is_taken_at_a_time(ends: Ends, tmp_path: Path) -> None:
    transport, theirs = ends
    content = os.urandom(200_000)
    (tmp_path / "file").write_bytes(content)
    file = Files().open(tmp_path / "file")
    transport.unsent.extend([b"head", FileSlice(file, 1_000, 150_000), b"x" * 100_000, FileSlice(file, 0, 7), b"tail"])
    expected = b"head" + content[1_000:151_000] + b"x" * 100_000 + content[:7] + b"tail"
    received = bytearray()
    while len(received) < len(expected):
        transport.send()
        with contextlib.suppress(BlockingIOError):
            received += theirs.recv(10_000)
    assert bytes(received) == expected
    assert not transport.unsent


def test_a_file_that_ends_too_early_is_an_error_and_not_silence(ends: Ends, tmp_path: Path) -> None:
    transport, _ = ends
    (tmp_path / "file").write_bytes(b"short")
    transport.unsent.append(FileSlice(Files().open(tmp_path / "file"), 0, 100))
    with pytest.raises(OSError, match="a file ended"):
        for _ in range(2):
            transport.send()


def test_the_peers_end_and_a_silence_are_told_apart(ends: Ends) -> None:
    transport, theirs = ends
    space = memoryview(bytearray(10))
    assert transport.receive_into(space) is None
    theirs.send(b"abc")
    assert transport.receive_into(space) == 3
    theirs.close()
    assert transport.receive_into(space) == 0
