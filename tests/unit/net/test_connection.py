"""One connection, on a pair of sockets."""

from __future__ import annotations

import asyncio
import socket
import struct

from penstock.net.buffers import BASE_BYTES, Allowance
from penstock.net.caller import Caller
from penstock.net.connection import Connection, Parts
from penstock.net.transport import SocketTransport

_REQUEST = struct.pack(">i", 8) + bytes(8)
_ANSWER = b"answered"


async def test_requests_that_fill_the_buffer_while_the_first_one_waits_are_all_answered() -> None:
    loop = asyncio.get_running_loop()
    gate = asyncio.Event()

    async def handle(frame: memoryview, caller: Caller) -> Parts:
        await gate.wait()
        return [_ANSWER]

    count = 2 * BASE_BYTES // len(_REQUEST)
    ours, theirs = socket.socketpair()
    with theirs:
        for end in (ours, theirs):
            end.setblocking(False)
        # All of it is there before the first is read, so the first read fills the buffer.
        assert theirs.send(count * _REQUEST) == count * len(_REQUEST)
        connection = Connection(
            loop,
            SocketTransport(ours),
            Caller("here", "PLAINTEXT"),
            handle,
            Allowance(1 << 20),
            1 << 20,
            loop.time,
            on_close=lambda closed: None,
        )
        for _ in range(3):
            await asyncio.sleep(0)  # turns of the loop in which the socket is readable
        gate.set()
        answers = 0
        while answers < count * len(_ANSWER):
            received = len(await loop.sock_recv(theirs, 1 << 16))
            assert received, "the connection was closed"
            answers += received
        connection.close()
