"""Headers that every response carries; the policy lets a browser run our own files and nothing else.

The login form has one script in its page. It carries the nonce of its response, which is new each time.
"""

from __future__ import annotations

import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FIXED = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), payment=()"),
)
_STRICT_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")


def policy(nonce: str) -> str:
    """The Content-Security-Policy of a response."""
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src 'self' 'nonce-{nonce}'",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


class ResponseHeaders:
    """Pure ASGI; outside of the guard, so that refusals carry the headers too."""

    def __init__(self, app: ASGIApp, *, is_https: bool) -> None:
        self._app = app
        self._fixed = (*_FIXED, _STRICT_TRANSPORT) if is_https else _FIXED

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = secrets.token_urlsafe(18)
        scope.setdefault("state", {})["nonce"] = nonce
        is_api = scope["path"].startswith("/api")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower(), value) for name, value in message.get("headers", [])]
                known = {name for name, _ in headers}
                headers += [pair for pair in self._fixed if pair[0] not in known]
                headers.append((b"content-security-policy", policy(nonce).encode()))
                if is_api and b"cache-control" not in known:
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, with_headers)
