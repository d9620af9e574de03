"""The HTTP client of an endpoint: one request and its response, over kept-alive connections.

Rules: redirects are not followed, nothing is read from the environment, and the timeout covers the whole request,
however slowly the response comes.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx

from penstock.clock import Clock
from penstock.errors import ConfigError
from penstock.push.requests import Request
from penstock.push.responses import REJECTING, PushOutcome, RetryLater, outcome_of
from penstock.push.signing import HEADER, signature
from penstock.push.target import Target

_READ_BYTES = 64 << 10
"""Of an answer's body; a connection whose answer is longer is closed."""
_USER_AGENT = "penstock-push"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How requests are made."""

    timeout_s: float
    connections: int
    """At the same time; as many are kept open."""
    secrets: tuple[bytes, ...] = ()
    rejecting: frozenset[int] = REJECTING
    authorities: Path | None = None
    """A file of certificate authorities to trust in place of the usual ones."""


class HttpEndpoint:
    """To be used in an `async with`."""

    def __init__(self, target: Target, request_options: RequestOptions, clock: Clock) -> None:
        self._target = target
        self._request_options = request_options
        self._clock = clock
        self._http = httpx.AsyncClient(
            auth=target.credentials,
            verify=_trusting(request_options.authorities),
            # The whole request has its time; the steps need none of their own.
            timeout=None,
            follow_redirects=False,
            trust_env=False,
            limits=httpx.Limits(
                max_connections=request_options.connections, max_keepalive_connections=request_options.connections
            ),
            headers={"user-agent": _USER_AGENT},
        )

    async def __aenter__(self) -> HttpEndpoint:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def post(self, request: Request) -> PushOutcome:
        """Sends, and says what came of it; never raises for what the endpoint does."""
        headers = list(request.headers)
        if self._request_options.secrets:
            headers.append((HEADER, signature(self._request_options.secrets, self._clock.now_ms(), request.body)))
        try:
            async with asyncio.timeout(self._request_options.timeout_s):
                return await self._ask(headers, request.body)
        except TimeoutError:
            return RetryLater(f"no answer within {self._request_options.timeout_s:g} s")
        except httpx.HTTPError as error:
            return RetryLater(f"{type(error).__name__}: {error}".removesuffix(": "))

    async def _ask(self, headers: list[tuple[str, str]], body: bytes) -> PushOutcome:
        async with self._http.stream("POST", self._target.url, headers=headers, content=body) as response:
            read = bytearray()
            async for piece in response.aiter_raw():
                read += piece
                if len(read) > _READ_BYTES:
                    break
            return outcome_of(
                response.status_code,
                response.headers.get("retry-after"),
                read.decode("utf-8", "replace"),
                self._request_options.rejecting,
                self._clock.now_ms(),
            )


def _trusting(authorities: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificate authorities in {authorities} cannot be read: {error}") from None
