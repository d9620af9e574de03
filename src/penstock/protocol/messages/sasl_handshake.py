"""SaslHandshake (17): the client chooses how it logs in (KIP-43). After version 0 tokens come without requests."""

from __future__ import annotations

from penstock.protocol.schema import NEVER, i16, message


@message(flexible_from=NEVER)
class SaslHandshakeRequest:
    mechanism: str


@message(flexible_from=NEVER)
class SaslHandshakeResponse:
    error_code: i16 = 0
    mechanisms: tuple[str, ...] = ()
