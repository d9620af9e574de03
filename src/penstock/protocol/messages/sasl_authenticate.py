"""SaslAuthenticate (36): one message of a login, and the answer to it (KIP-152, KIP-368)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i64, message, since


@message(flexible_from=2)
class SaslAuthenticateRequest:
    auth_bytes: bytes


@message(flexible_from=2)
class SaslAuthenticateResponse:
    error_code: i16 = 0
    error_message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: i64 = since(1, default=0)
