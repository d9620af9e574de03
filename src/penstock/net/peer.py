"""A connection to another broker: one request at a time; each is answered before the next is sent.

A call that fails closes the connection, and the next call opens another. Responses have a largest size and calls a
longest time. A response is handed on in the memory into which it was received: the kernel alone copies what a follower
fetches.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable
from typing import cast

from penstock.errors import PeerError
from penstock.protocol.varint import read_uvarint

_i32 = struct.Struct(">i")
_header = struct.Struct(">hhi").pack
_SIZE_BYTES = 4


class Peer:
    """One other broker."""

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        max_answer_bytes: int,
        timeout_s: float,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`tls` is asked for each connection, if it is encrypted; the other broker is checked by its host name."""
        self._host = host
        self._port = port
        self._client_id = client_id.encode()
        self._max_answer_bytes = max_answer_bytes
        self._timeout_s = timeout_s
        self._tls = tls
        self._link: _Link | None = None
        self._correlation_id = 0
        self._turn = asyncio.Lock()

    def start_call(self, api_key: int, version: int, body: bytes, *, is_flexible: bool) -> asyncio.Task[memoryview]:
        """`call` in a task of its own. Whoever waits for it may be cancelled in the moment in which it fails."""
        call = self.call(api_key, version, body, is_flexible=is_flexible)
        task = asyncio.get_running_loop().create_task(call)
        # Asked for what went wrong also when nobody waits any more: else it would be logged as an error of ours.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return task

    async def call(self, api_key: int, version: int, body: bytes, *, is_flexible: bool) -> memoryview:
        """The body of the answer; PeerError if there is none."""
        async with self._turn:
            try:
                return await self._call(api_key, version, body, is_flexible)
            except (OSError, TimeoutError, PeerError) as error:
                self._drop()
                raise PeerError(
                    f"{self._host}:{self._port} does not answer: {error or type(error).__name__}"
                ) from error
            except BaseException:
                self._drop()
                raise

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
            await link.is_closed

    async def _call(self, api_key: int, version: int, body: bytes, is_flexible: bool) -> memoryview:
        loop = asyncio.get_running_loop()
        link = self._link
        if link is None:
            async with asyncio.timeout(self._timeout_s):
                _, link = await loop.create_connection(
                    lambda: _Link(self._max_answer_bytes),
                    self._host,
                    self._port,
                    ssl=None if self._tls is None else self._tls(),
                    server_hostname=None if self._tls is None else self._host,
                )
            self._link = link
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        head = _header(api_key, version, correlation_id) + len(self._client_id).to_bytes(2, "big") + self._client_id
        if is_flexible:
            head += b"\0"
        asked = link.ask(_i32.pack(len(head) + len(body)) + head + body)
        timer = loop.call_later(self._timeout_s, link.fail, TimeoutError(f"no answer within {self._timeout_s:g} s"))
        try:
            answer = await asked
        finally:
            timer.cancel()
        (answered,) = _i32.unpack_from(answer)
        if answered != correlation_id:
            raise PeerError(f"an answer to request {answered} where {correlation_id} was asked")
        if not is_flexible:
            return answer[4:]
        tags, position = read_uvarint(answer, 4)
        if tags:
            raise PeerError("a response with unexpected header fields")
        return answer[position:]

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


class _Link(asyncio.BufferedProtocol):
    """The bytes of one connection: requests out, answers in."""

    def __init__(self, max_answer_bytes: int) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._transport: asyncio.Transport | None = None
        self._size = bytearray(_SIZE_BYTES)
        self._body: bytearray | None = None
        """Of the answer that is coming, once its size is known."""
        self._filled = 0
        self._asked: asyncio.Future[memoryview] | None = None
        self.is_closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name

    def ask(self, frame: bytes) -> asyncio.Future[memoryview]:
        """Sends a request; the answer comes as the future's result."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection was closed")
        self._asked = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        return self._asked

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def fail(self, error: Exception) -> None:
        """Nothing more comes over this connection."""
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_exception(error)
        self.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._size if self._body is None else self._body)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._body is None:
            if self._filled < _SIZE_BYTES:
                return
            (size,) = _i32.unpack(self._size)
            if self._asked is None or not _SIZE_BYTES <= size <= self._max_answer_bytes:
                self.fail(PeerError(f"an answer of {size} bytes"))
                return
            self._body, self._filled = bytearray(size), 0
        elif self._filled == len(self._body):
            body, self._body, self._filled = self._body, None, 0
            asked, self._asked = self._asked, None
            if asked is not None and not asked.done():
                asked.set_result(memoryview(body))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(error or ConnectionResetError("the connection was closed"))
        if not self.is_closed.done():
            self.is_closed.set_result(None)
