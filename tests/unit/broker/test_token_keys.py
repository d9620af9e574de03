"""Where the keys of tokens come from: addresses that answer with anything but keys."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.background.token_keys import TokenKeys
from penstock.config.security import SecuritySettings

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 503 Later\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"\r\n\xff",
        OK + b"\r\n" + b"[" * 100_000,
        OK + b"\r\n[]",
        OK + b'\r\n{"keys": [1, {"kty": ["RSA"]}, {"kty": "RSA", "n": 5, "e": {}}, {"kty": "EC", "crv": []}]}',
    ],
    ids=["nothing", "no HTTP", "an error", "broken", "no text", "too deep", "no set", "no keys"],
)
async def test_what_is_no_key_set_is_logged_and_asked_for_again(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
    keys = TokenKeys(SecuritySettings(oauth_jwks_url=url, oauth_issuer="https://issuer", oauth_audience="penstock"))
    try:
        await keys.start()
        assert f"security.oauth_jwks_url = '{url}': the keys cannot be read" in str(caplog.records[-1].__dict__)
    finally:
        await keys.close()
        server.close()
