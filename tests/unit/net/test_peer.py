"""Calls to another broker: answers, silence, and everything else that a peer may do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from penstock.errors import PeerError
from penstock.net.peer import Peer

Reply = Callable[[int, bytes, asyncio.StreamWriter], Awaitable[None]]
"""Is given the correlation id and the rest of each request."""


def framed(correlation_id: int, body: bytes) -> bytes:
    return (4 + len(body)).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body


@asynccontextmanager
async def answered_by(reply: Reply, *, timeout_s: float = 30.0) -> AsyncIterator[Peer]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                await reply(int.from_bytes(request[4:8], "big"), request[8:], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    peer = Peer("127.0.0.1", port, "me", max_answer_bytes=1 << 22, timeout_s=timeout_s)
    try:
        yield peer
    finally:
        await peer.close()
        server.close()


async def echo(correlation_id: int, request: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(framed(correlation_id, request))


async def test_answers_come_in_the_order_of_the_calls_however_large() -> None:
    async with answered_by(echo) as peer:
        bodies = [b"a", b"b" * 3_000_000, b"", b"c"]
        answers = await asyncio.gather(*(peer.call(1, 2, body, is_flexible=False) for body in bodies))
        assert [bytes(answer) for answer in answers] == [b"\0\2me" + body for body in bodies]


def test_it_is_the_same_on_the_event_loop_of_a_broker() -> None:
    uvloop.run(test_answers_come_in_the_order_of_the_calls_however_large())
    uvloop.run(test_after_a_call_that_failed_the_next_one_opens_another_connection())


async def test_an_answer_may_come_in_pieces() -> None:
    async def piecemeal(correlation_id: int, request: bytes, writer: asyncio.StreamWriter) -> None:
        for byte in framed(correlation_id, b"whole"):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    async with answered_by(piecemeal) as peer:
        assert bytes(await peer.call(1, 2, b"", is_flexible=False)) == b"whole"


async def test_after_a_call_that_failed_the_next_one_opens_another_connection() -> None:
    calls = 0

    async def close_first(correlation_id: int, request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            writer.close()
        else:
            await echo(correlation_id, request, writer)

    async with answered_by(close_first) as peer:
        with pytest.raises(PeerError, match="does not answer"):
            await peer.call(1, 2, b"x", is_flexible=False)
        assert bytes(await peer.call(1, 2, b"x", is_flexible=False)) == b"\0\2mex"


@pytest.mark.parametrize("sent", [b"\x7f\xff\xff\xff", b"\0\0\0\3abc", b"\xff\xff\xff\xff", framed(99, b"")])
async def test_an_answer_that_cannot_be_ends_the_call(sent: bytes) -> None:
    async def nonsense(correlation_id: int, request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)

    async with answered_by(nonsense) as peer:
        with pytest.raises(PeerError):
            await peer.call(1, 2, b"", is_flexible=False)


async def test_a_peer_that_is_silent_is_given_up() -> None:
    async def silent(correlation_id: int, request: bytes, writer: asyncio.StreamWriter) -> None:
        return

    async with answered_by(silent, timeout_s=0.05) as peer:
        with pytest.raises(PeerError, match="no answer within"):
            await peer.call(1, 2, b"", is_flexible=False)


async def test_a_call_that_is_cancelled_leaves_nothing_for_the_next_one() -> None:
    held = asyncio.Event()

    async def late(correlation_id: int, request: bytes, writer: asyncio.StreamWriter) -> None:
        if held.is_set():
            await echo(correlation_id, request, writer)
        held.set()

    async with answered_by(late) as peer:
        call = asyncio.ensure_future(peer.call(1, 2, b"first", is_flexible=False))
        await held.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert bytes(await peer.call(1, 2, b"second", is_flexible=False)) == b"\0\2mesecond"


async def test_nobody_there_is_an_error_of_the_peer() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    peer = Peer("127.0.0.1", port, "me", max_answer_bytes=100, timeout_s=5)
    with pytest.raises(PeerError, match="does not answer"):
        await peer.call(1, 2, b"", is_flexible=False)


async def test_a_call_that_fails_when_nobody_waits_any_more_is_no_error_of_ours() -> None:
    async def hang_up(correlation_id: int, request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    async with answered_by(hang_up) as peer:
        call = peer.start_call(1, 2, b"", is_flexible=False)
        await asyncio.wait([call])
    del call
    gc.collect()
    await asyncio.sleep(0)
    assert not said
