"""RoundRobin of connections with large frames: who is handled when."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest
import uvloop

from penstock.net.buffers import Allowance
from penstock.net.caller import Caller
from penstock.net.connection import Connection, Parts
from penstock.net.round_robin import RoundRobin
from penstock.net.transport import SocketTransport

_LARGE_BYTES = 600_000
_LARGE, _FRAMES = 3, 5


async def test_turns_are_given_in_the_order_of_asking_and_the_loop_does_what_it_has_in_between() -> None:
    loop = asyncio.get_running_loop()
    turns, seen, done = RoundRobin(loop), list[str](), asyncio.Event()

    def turn(name: str) -> None:
        seen.append(name)
        loop.call_soon(seen.append, f"behind {name}")

    turns.ask(lambda: turn("first"))
    turns.ask(lambda: turn("second"))
    turns.ask(done.set)
    await done.wait()
    assert seen == ["first", "behind first", "second", "behind second"]


async def test_a_turn_that_fails_does_not_take_that_of_the_next() -> None:
    loop, failed, done = asyncio.get_running_loop(), list[BaseException | None](), asyncio.Event()
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))

    def fail() -> None:
        raise ValueError("a turn that fails")

    turns = RoundRobin(loop)
    turns.ask(fail)
    turns.ask(done.set)
    await done.wait()
    assert [type(error) for error in failed] == [ValueError]


class _Clients:
    """Three connections with large frames in their sockets, and one that sends a small one whenever a large one is
    being handled.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns, self._allowance = RoundRobin(self._loop), Allowance(1 << 30)
        self._ends: list[tuple[Connection, socket.socket]] = []
        self._is_done = asyncio.Event()
        self.handled = ""
        self._small = self._connect()
        self._large = [self._connect() for _ in range(_LARGE)]

    def _connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        connection = Connection(
            self._loop,
            SocketTransport(ours),
            Caller("here", "PLAINTEXT"),
            self._handle,
            self._allowance,
            1 << 20,
            1,
            self._turns,
            self._loop.time,
            on_close=lambda closed: None,
        )
        self._ends.append((connection, theirs))
        return theirs

    async def _handle(self, frame: memoryview, caller: Caller) -> Parts:
        self.handled += chr(frame[0])
        if len(frame) == _LARGE_BYTES:
            self._small.send(_frame(b"s", 8))
        if len(self.handled) == 2 * _LARGE * _FRAMES:
            self._is_done.set()
        return [b"answered"]

    async def serve(self) -> None:
        sending = [
            asyncio.ensure_future(self._loop.sock_sendall(sock, _FRAMES * _frame(b"%d" % number, _LARGE_BYTES)))
            for number, sock in enumerate(self._large)
        ]
        await self._is_done.wait()
        await asyncio.gather(*sending)
        for connection, theirs in self._ends:
            connection.close()
            theirs.close()


def _frame(name: bytes, size: int) -> bytes:
    return struct.pack(">i", size) + name + bytes(size - 1)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_small_request_waits_for_one_large_one_however_many_clients_send_large_ones(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def serve() -> str:
        clients = _Clients()
        await clients.serve()
        return clients.handled

    with asyncio.Runner(loop_factory=new_loop) as runner:
        handled = runner.run(serve())
    assert set(handled[1::2]) == {"s"}, handled
    large = handled[::2]
    assert all(set(large[at : at + _LARGE]) == {"0", "1", "2"} for at in range(0, len(large), _LARGE)), large
