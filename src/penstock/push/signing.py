"""Signatures, by which a receiver knows that a request is ours and is not an old one. Pure.

    penstock-signature: t=1700000000,v1=5f8c...

`t` is the time of sending in seconds since 1970, `v1` the HMAC-SHA256, in hexadecimal, of `t`, a dot, and the body. A
secret is replaced without a gap by having two for a while: there is a `v1` for each then.
"""

from __future__ import annotations

import hashlib
import hmac

from penstock.errors import ConfigError

HEADER = "penstock-signature"
MIN_SECRET_BYTES = 16
MOST_SECRETS = 8


def parse_secrets(content: bytes) -> tuple[bytes, ...]:
    """The secrets in a file: one a line, blanks around it do not count."""
    found = tuple(secret for line in content.splitlines() if (secret := line.strip()))
    if not 1 <= len(found) <= MOST_SECRETS:
        raise ConfigError(f"the file of secrets has {len(found)}: 1 to {MOST_SECRETS} are needed, one a line")
    for number, secret in enumerate(found, 1):
        if len(secret) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"secret {number} has {len(secret)} bytes: fewer than {MIN_SECRET_BYTES} can be guessed; "
                "`openssl rand -hex 32` makes one"
            )
    return found


def signature(secrets: tuple[bytes, ...], now_ms: int, body: bytes) -> str:
    """The value of the header for a body that is sent now."""
    time = str(now_ms // 1000)
    signed = f"{time}.".encode() + body
    marks = (hmac.new(secret, signed, hashlib.sha256).hexdigest() for secret in secrets)
    return ",".join([f"t={time}", *(f"v1={mark}" for mark in marks)])
