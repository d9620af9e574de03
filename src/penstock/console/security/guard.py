"""The guard: pure ASGI, before every HTTP request and every websocket.

Rules:
- A request names a host that the console is known by (no DNS rebinding), and an origin, if it has one, that is its own.
- Without a session or a token only the login, health and static files answer; an API call gets 401, a page is sent to
  the login, a websocket is refused.
- A request that changes something and comes with a cookie carries the session's CSRF token in `X-CSRF-Token`. One with
  a bearer token needs none: no browser adds that by itself.
- A body is not larger than `max_body_bytes`, whatever its Content-Length says.
- What comes after finds the caller in `request.state.caller` and the session in `request.state.session`.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.console.errors import title_of
from penstock.console.security.roles import Caller
from penstock.console.settings import SecuritySettings
from penstock.console.state.sessions import Session, Sessions

COOKIE = "penstock_console"
SECURE_COOKIE = "__Host-penstock_console"
CSRF_HEADER = "x-csrf-token"
LOGIN = "/login"
OIDC = "/login/oidc"
OIDC_CALLBACK = "/login/oidc/callback"
OIDC_LOGOUT = "/login/oidc/logout"
HEALTH = "/healthz"
_PUBLIC = frozenset({LOGIN, OIDC, OIDC_CALLBACK, OIDC_LOGOUT, HEALTH})
_PUBLIC_FOLDERS = ("/static/",)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_ANY_ADDRESS = frozenset({"", "0.0.0.0", "::"})
_MAX_BEARER = 512


class BodyTooLargeError(HTTPException):
    """Raised into the app by `receive`, for it to answer; the guard answers it if the app does not."""


class Guard:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, sessions: Sessions, settings: SecuritySettings, listen_host: str) -> None:
        self._app = app
        self._sessions = sessions
        self._settings = settings
        own = _LOOPBACK if listen_host in _LOOPBACK | _ANY_ADDRESS else _LOOPBACK | {listen_host.lower()}
        self._hosts = own | {host.lower() for host in settings.hosts}
        self._hosts |= {urlsplit(origin).hostname or "" for origin in settings.origins}
        self._takes_any_host = listen_host in _ANY_ADDRESS and not settings.hosts

    @property
    def cookie_name(self) -> str:
        return cookie_name(self._settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        path = scope["path"]
        if not self._knows_host(headers):
            await _refuse(
                scope, send, 400, "this is not a host that the console is known by; start it with --host-name"
            )
            return
        if not self._is_own_origin(scope, headers):
            await _refuse(scope, send, 403, "the request comes from a page of another origin; nothing was done")
            return
        caller, session = await self._who(scope, headers)
        if caller is None and not _is_public(path):
            await self._ask_to_sign_in(scope, send)
            return
        if session is not None and not _has_csrf_token(scope, path, headers, session):
            await _refuse(scope, send, 403, "the header X-CSRF-Token is missing or wrong; nothing was done")
            return
        state = scope.setdefault("state", {})
        state["caller"], state["session"], state["address"] = caller, session, address_of(scope)
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
        else:
            await self._bounded(scope, headers, receive, send)

    async def _who(self, scope: Scope, headers: Mapping[str, str]) -> tuple[Caller | None, Session | None]:
        bearer = headers.get("authorization", "")
        address = address_of(scope)
        if bearer[:7].lower() == "bearer ":
            token = bearer[7:].strip()
            return (await self._sessions.caller_of_token(token, address) if len(token) <= _MAX_BEARER else None), None
        cookie = cookie_of(headers, self.cookie_name)
        if not cookie:
            return None, None
        found = await self._sessions.signed_in(cookie, address)
        return (None, None) if found is None else (found.caller, found.session)

    async def _ask_to_sign_in(self, scope: Scope, send: Send) -> None:
        path = scope["path"]
        if scope["type"] == "websocket" or path.startswith("/api"):
            await _refuse(scope, send, 401, "sign in first, or send a token: Authorization: Bearer …; nothing was done")
            return
        asked = path + (f"?{scope['query_string'].decode('latin-1')}" if scope.get("query_string") else "")
        prefix = scope.get("root_path", "")
        where = f"{prefix}{LOGIN}" + ("" if asked == "/" else f"?next={quote(asked, safe='')}")
        await send({"type": "http.response.start", "status": 303, "headers": [(b"location", where.encode("latin-1"))]})
        await send({"type": "http.response.body", "body": b""})

    def _knows_host(self, headers: Mapping[str, str]) -> bool:
        if self._takes_any_host:
            return True
        return host_name(headers.get("host", "")) in self._hosts

    def _is_own_origin(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        origin = headers.get("origin")
        is_socket = scope["type"] == "websocket"
        if origin is None:
            # A browser always names the origin of a websocket; a script that has none comes with a token.
            return not is_socket or "authorization" in headers
        if not is_socket and scope["method"] in _SAFE:
            return True
        return origin in self._settings.origins or _netloc(origin) == headers.get("host", "").lower()

    async def _bounded(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        limit = self._settings.max_body_bytes
        told = headers.get("content-length", "0")
        if not told.isdigit() or int(told) > limit:
            await _refuse(scope, send, 413, f"a request has at most {limit} bytes; nothing was done")
            return
        received = 0
        has_started = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise BodyTooLargeError(413, f"a request has at most {limit} bytes; nothing was done")
            return message

        async def noted(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, counted, noted)
        except BodyTooLargeError:
            if has_started:
                raise
            await _refuse(scope, send, 413, f"a request has at most {limit} bytes; nothing was done")


def cookie_name(settings: SecuritySettings) -> str:
    return SECURE_COOKIE if settings.is_secure_cookie else COOKIE


def address_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def host_name(host: str) -> str:
    """Without the port."""
    return (urlsplit(f"//{host}").hostname or "") if _is_plain(host) else ""


def cookie_of(headers: Mapping[str, str], name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _is_plain(host: str) -> bool:
    try:
        urlsplit(f"//{host}").port  # noqa: B018  (raises for a port that is none)
    except ValueError:
        return False
    return not set(host) & set("/@?#\\ ")


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_public(path: str) -> bool:
    return path in _PUBLIC or (path.startswith(_PUBLIC_FOLDERS) and ".." not in path)


def _has_csrf_token(scope: Scope, path: str, headers: Mapping[str, str], session: Session) -> bool:
    if scope["type"] == "websocket" or scope["method"] in _SAFE or path == LOGIN:
        return True
    return hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), session.csrf.encode())


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        found[key] = f"{found[key]}; {text}" if key == "cookie" and key in found else text
    return found


async def _refuse(scope: Scope, send: Send, status: int, detail: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 4000 + status, "reason": detail[:100]})
        return
    codes = {400: "INVALID_REQUEST", 401: "NOT_SIGNED_IN", 403: "REFUSED", 413: "TOO_LARGE"}
    problem: dict[str, Any] = {"status": status, "code": codes[status], "title": title_of(status), "detail": detail}
    body = json.dumps(problem).encode()
    sent = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        sent.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body})
