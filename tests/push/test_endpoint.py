"""One request and its answer, over real connections."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.push.endpoint import HttpEndpoint, RequestOptions
from penstock.push.requests import Request
from penstock.push.responses import Accepted, PushOutcome, Refused, RetryLater
from penstock.push.target import parse_target
from support.endpoint import Answer, endpoint
from support.ports import first_of_free_ports
from support.programs import required_program

REQUEST = Request((("penstock-topic", "orders"),), b"body")


async def post(url: str, *, authorities: Path | None = None, timeout_s: float = 20.0) -> PushOutcome:
    request_options = RequestOptions(timeout_s=timeout_s, connections=2, authorities=authorities)
    async with HttpEndpoint(parse_target(url), request_options, SystemClock()) as pushed:
        return await asyncio.wait_for(pushed.post(REQUEST), 60)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ssl.SSLContext]]:
    """A certificate for loopback that has signed itself, and a server's context with it."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *(required_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(cert), "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    yield cert, context


async def test_https_is_trusted_by_the_authority_that_was_named(certificate: tuple[Path, ssl.SSLContext]) -> None:
    cert, context = certificate
    with endpoint(lambda posted: Answer(200), context) as hook:
        assert await post(hook.url, authorities=cert) == Accepted()
        assert hook.requests[0].body == b"body"


async def test_a_certificate_of_nobody_is_not_trusted_and_gets_nothing(
    certificate: tuple[Path, ssl.SSLContext],
) -> None:
    with endpoint(lambda posted: Answer(200), certificate[1]) as hook:
        found = await post(hook.url)
        assert isinstance(found, RetryLater)
        assert "CERTIFICATE_VERIFY_FAILED" in found.reason
        assert hook.requests == []


async def test_a_user_in_the_address_becomes_basic_authentication() -> None:
    with endpoint(lambda posted: Answer(200)) as hook:
        assert await post(hook.url.replace("//", "//me:secret@")) == Accepted()
        assert hook.requests[0].headers["authorization"] == f"Basic {b64encode(b'me:secret').decode()}"


async def test_nobody_at_the_address_is_a_failure() -> None:
    found = await post(f"http://127.0.0.1:{first_of_free_ports(1)}/")
    assert isinstance(found, RetryLater)
    assert found.reason.startswith("ConnectError")


async def test_an_answer_without_end_counts_by_its_status_and_costs_no_memory() -> None:
    with endpoint(lambda posted: Answer(410, body=b"x" * 5_000_000)) as hook:
        found = await post(hook.url)
        assert isinstance(found, Refused)
        assert len(found.reason) < 300


async def test_an_answer_that_drips_is_silence() -> None:
    """Every byte is in time, the answer is not."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"body")
        for character in b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n":
            writer.write(bytes([character]))
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            pass

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await post(f"http://127.0.0.1:{port}/", timeout_s=0.5) == RetryLater("no answer within 0.5 s")


async def test_what_is_no_http_is_a_failure() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await post(f"http://127.0.0.1:{port}/")
        assert isinstance(found, RetryLater)
