"""One connection, on a pair of sockets."""

from __future__ import annotations

import asyncio
import socket
import struct

from penstock.errors import ProtocolError
from penstock.net.buffers import BASE_BYTES, Allowance
from penstock.net.caller import Caller
from penstock.net.connection import Connection, Parts, Unanswered
from penstock.net.round_robin import RoundRobin
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
            1,
            RoundRobin(loop),
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


class _Muted:
    """A connection whose requests are answered and throttle the caller, and the other end of it."""

    def __init__(self, request_throttle_ms: int = 60_000) -> None:
        self._loop = asyncio.get_running_loop()
        self.handled = 0
        self.throttle_ms = request_throttle_ms
        self.allowance = Allowance(1 << 20)
        self.closed: list[Connection] = []
        ours, self.theirs = socket.socketpair()
        for end in (ours, self.theirs):
            end.setblocking(False)
        self.connection = Connection(
            self._loop,
            SocketTransport(ours),
            caller := Caller("here", "PLAINTEXT"),
            self._handle,
            self.allowance,
            1 << 20,
            1,
            RoundRobin(self._loop),
            self._loop.time,
            on_close=self.closed.append,
        )
        self._caller = caller

    async def _handle(self, frame: memoryview, caller: Caller) -> Parts:
        self.handled += 1
        caller.throttle_ms = self.throttle_ms
        return [_ANSWER]

    async def answer(self) -> bytes:
        return await self._loop.sock_recv(self.theirs, 1 << 16)

    async def turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def close(self) -> None:
        self.connection.close()
        self.theirs.close()


async def test_a_throttled_caller_gets_its_answer_and_then_nothing_is_read_from_it() -> None:
    muted = _Muted()
    muted.theirs.send(_REQUEST)
    assert await muted.answer() == _ANSWER
    muted.theirs.send(_REQUEST)
    await muted.turns()
    assert (muted.handled, muted.connection.is_muted) == (1, True)
    muted.throttle_ms = 0
    muted.connection.unmute()
    assert await muted.answer() == _ANSWER
    assert not muted.connection.is_muted
    muted.close()


async def test_requests_that_have_come_already_wait_until_the_time_is_over() -> None:
    muted = _Muted(request_throttle_ms=1)
    muted.theirs.send(3 * _REQUEST)
    received = b""
    while len(received) < 3 * len(_ANSWER):
        received += await muted.answer()
    assert muted.handled == 3
    muted.close()


async def test_a_throttled_connection_is_not_closed_for_its_silence_and_holds_no_large_buffer() -> None:
    muted = _Muted()
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(muted.theirs, struct.pack(">i", 200_000) + bytes(200_000) + _REQUEST[:6])
    assert await muted.answer() == _ANSWER
    assert muted.allowance.used == 0
    muted.connection.look_after(loop.time() + 1000, loop.time() + 1000)
    assert not muted.closed
    muted.throttle_ms = 0
    muted.connection.unmute()
    await loop.sock_sendall(muted.theirs, _REQUEST[6:])
    assert await muted.answer() == _ANSWER
    muted.close()


async def test_what_a_throttled_caller_sent_before_it_left_is_handled_after_its_time() -> None:
    muted = _Muted(request_throttle_ms=1)
    muted.theirs.send(2 * _REQUEST)
    muted.theirs.shutdown(socket.SHUT_WR)
    while await muted.answer():
        pass
    assert muted.handled == 2
    muted.close()


async def test_a_throttled_connection_can_be_closed() -> None:
    muted = _Muted()
    muted.theirs.send(_REQUEST)
    assert await muted.answer() == _ANSWER
    muted.connection.close()
    assert not muted.connection.is_muted
    muted.connection.unmute()
    muted.close()


_AT_ONCE = 3


class _Replicated:
    """A connection whose Produce requests are carried out at once and answered when the test says so."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun: list[int] = []
        """The number in each request, in the order in which they were handled."""
        self.followers: dict[int, asyncio.Future[Parts]] = {}
        self.throttle_ms = 0
        self.closed: list[Connection] = []
        ours, self.theirs = socket.socketpair()
        for end in (ours, self.theirs):
            end.setblocking(False)
        self.connection = Connection(
            self.loop,
            SocketTransport(ours),
            Caller("here", "PLAINTEXT"),
            self.handle,
            Allowance(1 << 20),
            1 << 20,
            _AT_ONCE,
            RoundRobin(self.loop),
            self.loop.time,
            on_close=self.closed.append,
        )

    async def handle(self, frame: memoryview, caller: Caller) -> Parts | Unanswered:
        key, number = struct.unpack(">hxxi", frame)
        caller.is_producing = key == 0
        if key > 1:
            raise ProtocolError("no such request")
        self.begun.append(number)
        caller.throttle_ms = self.throttle_ms
        if key == 1:
            return [b"%d " % number]
        self.followers[number] = self.loop.create_future()
        return Unanswered(self.loop.create_task(self._response(number)))

    async def _response(self, number: int) -> Parts:
        return await self.followers[number]

    async def send(self, *requests: tuple[int, int]) -> None:
        """Requests by key and number: 0 is a Produce, 1 something else, 2 an error of the client."""
        self.theirs.send(b"".join(struct.pack(">ihxxi", 8, key, number) for key, number in requests))
        await self.turns()

    async def turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def acknowledge(self, *numbers: int) -> None:
        for number in numbers:
            self.followers[number].set_result([b"%d " % number])
        await self.turns()

    def answered(self) -> bytes:
        """What has come since the last time; nothing more comes after a None."""
        try:
            return self.theirs.recv(1 << 16)
        except BlockingIOError:
            return b"-"

    def close(self) -> None:
        self.connection.close()
        self.theirs.close()


async def test_produce_requests_begin_while_those_before_them_wait_for_followers_and_are_answered_in_order() -> None:
    replicated = _Replicated()
    await replicated.send((0, 1), (0, 2), (0, 3))
    assert replicated.begun == [1, 2, 3]
    await replicated.acknowledge(2)
    assert replicated.answered() == b"-"
    await replicated.acknowledge(1)
    assert replicated.answered() == b"1 2 "
    await replicated.acknowledge(3)
    assert replicated.answered() == b"3 "
    replicated.close()


async def test_no_more_produce_requests_of_a_connection_wait_for_followers_than_are_allowed() -> None:
    replicated = _Replicated()
    await replicated.send(*((0, number) for number in range(_AT_ONCE + 2)))
    assert replicated.begun == list(range(_AT_ONCE))
    await replicated.acknowledge(0)
    assert replicated.begun == list(range(_AT_ONCE + 1))
    assert not replicated.connection.is_idle
    replicated.close()


async def test_any_other_request_waits_until_all_before_it_are_answered() -> None:
    replicated = _Replicated()
    await replicated.send((0, 1), (0, 2), (1, 3), (0, 4))
    assert replicated.begun == [1, 2]
    await replicated.acknowledge(2)
    assert replicated.begun == [1, 2]
    await replicated.acknowledge(1)
    assert replicated.begun == [1, 2, 3, 4]
    assert replicated.answered() == b"1 2 3 "
    replicated.close()


async def test_more_requests_than_the_buffer_holds_wait_behind_one_that_waits_for_followers() -> None:
    replicated = _Replicated()
    await replicated.send((0, 0), (0, 1))
    count = 2 * BASE_BYTES // len(_REQUEST)
    await replicated.send(*((1, number) for number in range(2, count)))
    await replicated.acknowledge(0)
    await replicated.acknowledge(1)
    wanted = b"".join(b"%d " % number for number in range(count))
    received = b""
    while len(received) < len(wanted):
        received += await replicated.loop.sock_recv(replicated.theirs, 1 << 16)
    assert received == wanted
    replicated.close()


async def test_what_a_client_has_produced_before_it_leaves_is_carried_out_though_the_first_request_waits() -> None:
    replicated = _Replicated()
    await replicated.send(*((0, number) for number in range(_AT_ONCE + 2)))
    replicated.theirs.shutdown(socket.SHUT_WR)
    await replicated.turns()
    for number in range(_AT_ONCE + 2):
        assert not replicated.closed
        await replicated.acknowledge(number)
    assert replicated.begun == list(range(_AT_ONCE + 2))
    assert replicated.closed == [replicated.connection]
    replicated.theirs.close()


async def test_requests_before_a_bad_one_are_answered_before_the_connection_is_closed() -> None:
    replicated = _Replicated()
    await replicated.send((0, 1), (0, 2), (2, 3), (0, 4))
    await replicated.acknowledge(1, 2)
    assert (replicated.begun, replicated.answered(), replicated.answered()) == ([1, 2], b"1 2 ", b"")
    assert replicated.closed == [replicated.connection]
    replicated.theirs.close()


async def test_a_frame_of_a_size_that_cannot_be_does_not_take_the_answers_of_those_before_it() -> None:
    replicated = _Replicated()
    await replicated.send((0, 1))
    replicated.theirs.send(struct.pack(">i", -1) + bytes(8))
    await replicated.turns()
    assert not replicated.closed
    await replicated.acknowledge(1)
    assert (replicated.answered(), replicated.answered()) == (b"1 ", b"")
    replicated.theirs.close()


async def test_a_session_that_ends_while_requests_wait_for_followers_leaves_them_their_answers() -> None:
    replicated = _Replicated()
    await replicated.send((0, 1), (0, 2))

    async def refuse(frame: memoryview, caller: Caller) -> Parts:
        raise ProtocolError("the session has ended")

    replicated.connection.take_requests(refuse, 1 << 20)
    await replicated.send((0, 3))
    assert not replicated.closed
    await replicated.acknowledge(1, 2)
    assert (replicated.begun, replicated.answered(), replicated.answered()) == ([1, 2], b"1 2 ", b"")
    replicated.theirs.close()


async def test_a_login_behind_requests_that_wait_for_followers_waits_and_what_follows_it_comes_to_its_handler() -> None:
    replicated = _Replicated()
    renewed: list[int] = []

    async def log_in(frame: memoryview, caller: Caller) -> Parts:
        renewed.append(int.from_bytes(frame[4:8]))
        replicated.connection.take_requests(replicated.handle, 1 << 20)
        return [b"in "]

    await replicated.send((0, 1))
    replicated.connection.take_requests(log_in, 1 << 20)
    await replicated.send((1, 2), (0, 3))
    assert (replicated.begun, renewed) == ([1], [])
    await replicated.acknowledge(1)
    assert (replicated.begun, renewed, replicated.answered()) == ([1, 3], [2], b"1 in ")
    await replicated.acknowledge(3)
    assert replicated.answered() == b"3 "
    replicated.close()


async def test_a_connection_that_is_to_become_idle_begins_nothing_while_a_request_waits_for_followers() -> None:
    replicated = _Replicated()
    await replicated.send((0, 1))
    idle = replicated.connection.when_idle()
    await replicated.send((0, 2))
    assert (replicated.begun, idle.done()) == ([1], False)
    await replicated.acknowledge(1)
    assert replicated.begun == [1, 2]
    await replicated.acknowledge(2)
    assert idle.done()
    replicated.close()


async def test_a_caller_that_is_throttled_behind_a_request_that_waits_for_followers_gets_both_answers() -> None:
    replicated = _Replicated()
    await replicated.send((0, 1))
    replicated.throttle_ms = 60_000
    await replicated.send((0, 2), (0, 3))
    assert (replicated.begun, replicated.connection.is_muted) == ([1, 2], True)
    await replicated.acknowledge(1, 2)
    assert replicated.answered() == b"1 2 "
    replicated.close()


async def test_a_connection_that_is_closed_ends_the_waits_for_followers_and_is_not_closed_for_silence_before() -> None:
    replicated = _Replicated()
    await replicated.send((0, 1), (0, 2))
    replicated.connection.look_after(replicated.loop.time() + 1000, replicated.loop.time() + 1000)
    assert not replicated.closed
    replicated.close()
    await replicated.turns()
    assert all(follower.cancelled() for follower in replicated.followers.values())


async def test_a_request_that_fails_while_it_waits_for_followers_closes_its_connection() -> None:
    replicated = _Replicated()
    await replicated.send((0, 1), (0, 2))
    replicated.followers[2].set_exception(RuntimeError("an error in the broker"))
    await replicated.turns()
    assert replicated.closed == [replicated.connection]
    replicated.theirs.close()
