"""The HTTP side of a process: /metrics, /health and /ready, for monitoring and orchestration.

HTTP/1.1 by h11 over asyncio streams. Rules:

- Healthy means that the process serves; ready means that it can be given work. Every request asks again.
- With credentials every page needs them, so a probe has to send them too.
- Header size, connections, and the times to send a request and to take a response are bounded.
- A connection is one task; the server owns all of them and leaves none behind when it closes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import h11

from penstock.config.address import Address
from penstock.errors import ConfigError
from penstock.logs import fields
from penstock.security.http_credentials import HttpCredentials

log = logging.getLogger(__name__)

READ_BYTES = 4096

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
INDEX = b"""\
/metrics  values in Prometheus' text format
/health   whether the process serves
/ready    whether it can be given work
"""

Check = Callable[[], tuple[bool, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bounds on what clients of the HTTP side can make it hold."""

    header_bytes: int = 16_384
    connections: int = 64
    # From the first look for a request to its last byte; also how long a kept connection may stay silent.
    request_ms: int = 30_000
    # To take a whole answer.
    response_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Answer:
    """A response before it is framed."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


class HttpServer:
    """Serves what its callables say until it is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Callable[[], Awaitable[bytes]],
        health: Check,
        ready: Check,
        limits: HttpLimits | None = None,
        *,
        setting: str = "broker.http",
        tls: ssl.SSLContext | None = None,
        credentials: Callable[[], HttpCredentials | None] = lambda: None,
    ) -> None:
        """`setting` names the address in errors. Without credentials everyone is answered."""
        self._tls = tls
        self._credentials = credentials
        self._setting = setting
        self._address = Address(host, port)
        self._metrics = metrics
        self._health = health
        self._ready = ready
        self._limits = limits or HttpLimits()
        self._server: asyncio.Server | None = None
        self._closing = False
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def start(self) -> Address:
        """Listen; returns the address in use, with the port that stands for 0."""
        try:
            self._server = await asyncio.start_server(
                self._accept,
                self._address.host,
                self._address.port,
                limit=self._limits.header_bytes,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._limits.request_ms / 1000,
            )
        except (OSError, UnicodeError) as error:
            # The second: a host that cannot be a name.
            raise ConfigError(f"{self._setting} = '{self._address}' cannot be listened on: {error}") from error
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    async def close(self) -> None:
        """Stop listening and end every connection. Closing twice is allowed."""
        self._closing = True
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing or len(self._connections) >= self._limits.connections:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="penstock-http-connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.header_bytes)
        try:
            while await self._serve_one(connection, reader, writer):
                connection.start_next_cycle()
            writer.close()
            async with asyncio.timeout(self._limits.response_ms / 1000):
                await writer.wait_closed()
        except (TimeoutError, OSError):
            log.debug("http connection ended early", extra=fields(peer=writer.get_extra_info("peername")))
        except Exception:
            log.exception("http connection failed")
        finally:
            # Whatever ended it, also a cancellation: the socket goes now, not when the peer takes its answer.
            writer.transport.abort()

    async def _serve_one(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether the connection can take another."""
        try:
            async with asyncio.timeout(self._limits.request_ms / 1000):
                request = await _next_request(connection, reader)
        except h11.RemoteProtocolError as error:
            answer = Answer(error.error_status_hint, f"{error}\n".encode())
            await self._send(connection, writer, answer)
            return False
        if request is None:
            return False
        await self._send(connection, writer, await self._answer(request), request.method)
        # A body that we did not read ends the connection: we could not tell the next request from it.
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _answer(self, request: h11.Request) -> Answer:
        path = urlsplit(request.target.decode("ascii", "replace")).path
        credentials = self._credentials()
        if credentials is not None and not credentials.allow(_header(request, b"authorization")):
            log.info("http request refused: wrong or no credentials", extra=fields(path=path))
            return Answer(401, b"unauthorized\n", headers=(("WWW-Authenticate", 'Basic realm="penstock"'),))
        if path not in ("/", "/metrics", "/health", "/ready"):
            return Answer(404, b"not found\n")
        if request.method not in (b"GET", b"HEAD"):
            return Answer(405, b"method not allowed\n", headers=(("Allow", "GET, HEAD"),))
        try:
            match path:
                case "/metrics":
                    return Answer(200, await self._metrics(), PROMETHEUS)
                case "/health":
                    return _checked(self._health())
                case "/ready":
                    return _checked(self._ready())
                case _:
                    return Answer(200, INDEX)
        except Exception:
            log.exception("http request failed", extra=fields(path=path))
            return Answer(500, b"internal error\n")

    async def _send(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, answer: Answer, method: bytes = b"GET"
    ) -> None:
        if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        head = h11.Response(
            status_code=answer.status,
            reason=HTTPStatus(answer.status).phrase,
            headers=[
                ("Content-Type", answer.content_type),
                ("Content-Length", str(len(answer.body))),
                ("Cache-Control", "no-store"),
                *answer.headers,
            ],
        )
        writer.write(connection.send(head) or b"")
        if method != b"HEAD":
            writer.write(connection.send(h11.Data(data=answer.body)) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        async with asyncio.timeout(self._limits.response_ms / 1000):
            await writer.drain()


async def _next_request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The next request, or None when the peer is done."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Request):
            break
        else:
            return None
    # What of a body has come along is dropped; up to the end of the message, if that is here.
    while isinstance(connection.next_event(), h11.Data):
        pass
    return event


def _header(request: h11.Request, wanted: bytes) -> bytes | None:
    return next((value for name, value in request.headers if name == wanted), None)


def _checked(outcome: tuple[bool, Mapping[str, Any]]) -> Answer:
    good, details = outcome
    body = {"status": "ok" if good else "unavailable", **details}
    return Answer(200 if good else 503, json.dumps(body).encode() + b"\n", JSON)
