"""A connection to another broker: one request at a time; each is answered before the next is sent.

A call that fails closes the connection, and the next call opens another. Responses have a largest size and calls a
longest time. A response is handed on in the memory into which it was received: the kernel alone copies what a follower
fetches.

Where the other broker asks for a login, each connection begins with one, and logs in again before its session ends.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from penstock.errors import Code, PeerError, ProtocolError
from penstock.protocol import decoding, encoding
from penstock.protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.protocol.varint import read_uvarint
from penstock.security.exchange import ClientExchange, LoginError

_i32 = struct.Struct(">i")
_header = struct.Struct(">hhi").pack
_SIZE_BYTES = 4
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2
_PART_OF_SESSION = 0.85
"""A client logs in again when so much of its session is over."""


@dataclass(frozen=True, slots=True)
class PeerLogin:
    """How to log in to another broker, once."""

    mechanism: str
    exchange: ClientExchange


@dataclass(frozen=True, slots=True)
class PeerSecurity:
    """What connections to other brokers need, if those ask for it; each raises PeerError if this broker lacks it."""

    tls: Callable[[], ssl.SSLContext]
    login: Callable[[], PeerLogin]


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
        login: Callable[[], PeerLogin] | None = None,
    ) -> None:
        """The peer calls `tls` for each encrypted connection, and checks the other broker by its host name. It calls
        `login` for each login that the other broker wants.
        """
        self._login = login
        self._log_in_at: float | None = None
        """When the session is so old that it is time to log in again."""
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
        """`call` in a task of its own. A caller that waits for it may be cancelled in the moment in which it fails."""
        call = self.call(api_key, version, body, is_flexible=is_flexible)
        task = asyncio.get_running_loop().create_task(call)
        # Retrieve the exception even if no caller waits any more, or asyncio would log it.
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
            if self._login is not None:
                await self._log_in(link, self._login())
        elif self._login is not None and self._log_in_at is not None and loop.time() >= self._log_in_at:
            await self._log_in(link, self._login())
        return await self._ask(link, api_key, version, body, is_flexible)

    async def _log_in(self, link: _Link, login: PeerLogin) -> None:
        handshake = encoding.encode(SaslHandshakeRequest(mechanism=login.mechanism), _HANDSHAKE_VERSION)
        answer = await self._ask(link, SASL_HANDSHAKE.key, _HANDSHAKE_VERSION, handshake, False)
        try:
            agreed = decoding.decode(SaslHandshakeResponse, _HANDSHAKE_VERSION, answer, 0)[0]
            if agreed.error_code:
                raise PeerError(
                    f"it refuses the login: {Code(agreed.error_code).name}, this broker uses {login.mechanism} and it "
                    f"takes {', '.join(agreed.mechanisms)}"
                )
            await self._exchange(link, login.exchange)
        except (LoginError, ProtocolError) as error:
            raise PeerError(f"the login failed: {error}") from None

    async def _exchange(self, link: _Link, exchange: ClientExchange) -> None:
        version, challenge = _AUTHENTICATE_VERSION, None
        while True:
            # Hashing a password takes long, on purpose.
            message = await asyncio.to_thread(exchange.respond, challenge)
            if message is None:
                return
            request = encoding.encode(SaslAuthenticateRequest(auth_bytes=message), version)
            answer = await self._ask(link, SASL_AUTHENTICATE.key, version, request, True)
            response = decoding.decode(SaslAuthenticateResponse, version, answer, 0)[0]
            if response.error_code:
                raise LoginError(response.error_message or Code(response.error_code).name)
            challenge = bytes(response.auth_bytes)
            life_s = response.session_lifetime_ms / 1000
            self._log_in_at = asyncio.get_running_loop().time() + life_s * _PART_OF_SESSION if life_s else None

    async def _ask(self, link: _Link, api_key: int, version: int, body: bytes, is_flexible: bool) -> memoryview:
        loop = asyncio.get_running_loop()
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
            raise PeerError(f"an answer to request {answered} instead of {correlation_id}")
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
