"""The HTTP side over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from penstock.config.address import Address
from penstock.errors import ConfigError
from penstock.net.http_server import HttpLimits, HttpServer


class State:
    """What the server under test is told to say."""

    def __init__(self) -> None:
        self.metrics_text: bytes | Exception = b"penstock_up 1\n"
        self.healthy = True
        self.is_ready = False

    async def metrics(self) -> bytes:
        if isinstance(self.metrics_text, Exception):
            raise self.metrics_text
        return self.metrics_text

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        return self.healthy, {} if self.healthy else {"reason": "the log orders-0 is offline"}

    def ready(self) -> tuple[bool, Mapping[str, Any]]:
        return self.is_ready, {} if self.is_ready else {"reason": "recovering"}


class Running:
    def __init__(self, server: HttpServer, address: Address, state: State) -> None:
        self.server = server
        self.address = address
        self.state = state

    async def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any, bytes]:
        """One request by the standard library's client, in a thread."""

        def call() -> tuple[int, Any, bytes]:
            connection = http.client.HTTPConnection(*self.address, timeout=10)
            try:
                connection.request(method, path, body)
                response = connection.getresponse()
                return response.status, response.headers, response.read()
            finally:
                connection.close()

        return await asyncio.to_thread(call)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address)

    async def raw(self, text: bytes) -> bytes:
        """Everything that is answered until the server closes the connection."""
        reader, writer = await self.connect()
        writer.write(text)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return answer

    async def connections_become(self, count: int) -> None:
        for _ in range(1000):
            if self.server.connections == count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{self.server.connections} connections, expected {count}")


async def serving(limits: HttpLimits) -> AsyncIterator[Running]:
    state = State()
    server = HttpServer("127.0.0.1", 0, state.metrics, state.health, state.ready, limits)
    yield Running(server, await server.start(), state)
    await server.close()


PATIENT = HttpLimits(header_bytes=2048, connections=3)
IMPATIENT = HttpLimits(request_ms=200, response_ms=200)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async for one in serving(PATIENT):
        yield one


@pytest.fixture
async def impatient() -> AsyncIterator[Running]:
    async for one in serving(IMPATIENT):
        yield one


class TestPages:
    async def test_metrics_are_served_in_prometheus_format(self, running: Running) -> None:
        status, headers, body = await running.request("GET", "/metrics")
        assert (status, body) == (200, b"penstock_up 1\n")
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"

    async def test_health_says_why_it_is_not_well(self, running: Running) -> None:
        status, headers, body = await running.request("GET", "/health")
        assert (status, json.loads(body)) == (200, {"status": "ok"})
        assert headers["Content-Type"] == "application/json"
        running.state.healthy = False
        status, _, body = await running.request("GET", "/health")
        assert status == 503
        assert json.loads(body) == {"status": "unavailable", "reason": "the log orders-0 is offline"}

    async def test_ready_is_refused_until_it_is(self, running: Running) -> None:
        status, _, body = await running.request("GET", "/ready")
        assert (status, json.loads(body)) == (503, {"status": "unavailable", "reason": "recovering"})
        running.state.is_ready = True
        status, _, body = await running.request("GET", "/ready")
        assert (status, json.loads(body)) == (200, {"status": "ok"})

    async def test_the_index_names_the_pages(self, running: Running) -> None:
        status, _, body = await running.request("GET", "/")
        assert status == 200
        assert all(page in body for page in (b"/metrics", b"/health", b"/ready"))

    async def test_a_query_does_not_matter(self, running: Running) -> None:
        assert (await running.request("GET", "/metrics?name[]=x"))[0] == 200

    @pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/../etc/passwd", "/health%2f"])
    async def test_other_paths_are_not_found(self, running: Running, path: str) -> None:
        assert (await running.request("GET", path))[0] == 404

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
    async def test_other_methods_are_not_allowed(self, running: Running, method: str) -> None:
        status, headers, _ = await running.request(method, "/metrics", b"body")
        assert (status, headers["Allow"]) == (405, "GET, HEAD")

    async def test_head_answers_with_the_length_and_no_body(self, running: Running) -> None:
        status, headers, body = await running.request("HEAD", "/metrics")
        assert (status, headers["Content-Length"], body) == (200, "14", b"")

    async def test_a_page_that_fails_is_an_internal_error_and_the_next_one_works(self, running: Running) -> None:
        running.state.metrics_text = RuntimeError("broken")
        status, _, body = await running.request("GET", "/metrics")
        assert (status, body) == (500, b"internal error\n")
        assert (await running.request("GET", "/health"))[0] == 200


class TestConnections:
    async def test_one_connection_takes_many_requests(self, running: Running) -> None:
        def call() -> list[int]:
            connection = http.client.HTTPConnection(*running.address, timeout=10)
            statuses = []
            for method, path in (
                ("GET", "/health"),
                ("HEAD", "/metrics"),
                ("GET", "/no"),
                ("POST", "/ready"),
            ):
                connection.request(method, path)
                response = connection.getresponse()
                response.read()
                statuses.append(response.status)
            sock = connection.sock
            connection.request("GET", "/health")
            statuses.append(connection.getresponse().status)
            assert connection.sock is sock
            connection.close()
            return statuses

        assert await asyncio.to_thread(call) == [200, 200, 404, 405, 200]

    async def test_pipelined_requests_are_answered_in_order(self, running: Running) -> None:
        answer = await running.raw(
            b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
            b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
            b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"404", b"200"]

    async def test_an_old_client_gets_its_answer_and_the_end(self, running: Running) -> None:
        answer = await running.raw(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"penstock_up 1\n")

    async def test_a_body_that_does_not_come_ends_the_connection_after_the_answer(self, running: Running) -> None:
        answer = await running.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")

    @pytest.mark.parametrize(
        ("text", "status"),
        [
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
            (b"GET /health HTTP/1.1\r\n\r\n", b"400"),
            (b"GET /health\r\n\r\n", b"400"),
            (b"GET /health HTTP/1.1\r\nHost: x\r\nPadding: " + b"x" * 9000 + b"\r\n\r\n", b"431"),
        ],
    )
    async def test_what_is_not_http_or_too_long_is_refused_and_ended(
        self, running: Running, text: bytes, status: bytes
    ) -> None:
        answer = await running.raw(text)
        assert answer.startswith(b"HTTP/1.1 " + status)

    async def test_a_client_that_leaves_leaves_nothing_behind(self, running: Running) -> None:
        for text in (b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"):
            _, writer = await running.connect()
            writer.write(text)
            await writer.drain()
            writer.transport.abort()
        await running.connections_become(0)
        assert (await running.request("GET", "/health"))[0] == 200

    @pytest.mark.parametrize("text", [b"", b"GET /health HTTP/1.1\r\nHos"])
    async def test_a_client_that_does_not_finish_its_request_is_cut_off(self, impatient: Running, text: bytes) -> None:
        assert await impatient.raw(text) == b""

    async def test_a_client_that_trickles_is_cut_off_all_the_same(self, impatient: Running) -> None:
        reader, writer = await impatient.connect()

        async def trickle() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        try:
            assert await asyncio.wait_for(reader.read(), 10) == b""
        except ConnectionResetError:
            pass
        finally:
            trickling.cancel()
            writer.close()
        await impatient.connections_become(0)

    async def test_a_client_that_does_not_take_its_answer_is_cut_off_while_others_are_served(
        self, impatient: Running
    ) -> None:
        impatient.state.metrics_text = b"x" * 64_000_000
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, tuple(impatient.address))
        await loop.sock_sendall(slow, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await impatient.request("GET", "/ready"))[0] == 503
        await impatient.connections_become(0)
        slow.close()

    async def test_connections_beyond_the_limit_are_closed_at_once_and_others_live_on(self, running: Running) -> None:
        held = [await running.connect() for _ in range(PATIENT.connections)]
        await running.connections_become(PATIENT.connections)
        reader, writer = await running.connect()
        try:
            assert await asyncio.wait_for(reader.read(), 10) == b""
        except ConnectionResetError:
            pass
        writer.close()
        assert running.server.connections <= PATIENT.connections
        for _, held_writer in held:
            held_writer.close()
        await running.connections_become(0)
        assert (await running.request("GET", "/health"))[0] == 200


class TestStartAndClose:
    async def test_closing_ends_open_connections_and_leaves_no_task(self) -> None:
        state = State()
        server = HttpServer("127.0.0.1", 0, state.metrics, state.health, state.ready)
        address = await server.start()
        before = asyncio.all_tasks()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await server.close()
        assert asyncio.all_tasks() == before
        assert server.connections == 0
        with pytest.raises(OSError):
            await asyncio.open_connection(*address)
        writer.close()
        await server.close()

    async def test_a_server_never_started_can_be_closed(self) -> None:
        state = State()
        await HttpServer("127.0.0.1", 0, state.metrics, state.health, state.ready).close()

    async def test_an_address_in_use_is_an_error_of_configuration(self, running: Running) -> None:
        state = State()
        second = HttpServer(*running.address, state.metrics, state.health, state.ready)
        with pytest.raises(ConfigError, match=r"broker\.http"):
            await second.start()
        await second.close()
