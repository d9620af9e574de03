"""Credentials for the HTTP side of a broker: names with passwords, or tokens, out of a file.

A line of the file is `USER:PASSWORD`, for basic authentication, or `bearer TOKEN`. Empty lines and lines that begin
with # do not count.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import ConfigError

_BEARER = "bearer "


class HttpCredentials:
    """What an `Authorization` header has to be. Kept as digests, and compared in the same time whatever was sent."""

    def __init__(self, lines: Iterable[str]) -> None:
        """ValueError says which line is wrong."""
        digests = []
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.lower().startswith(_BEARER):
                digests.append(_digest(b"bearer " + text[len(_BEARER) :].strip().encode()))
            elif text.partition(":")[0] and text.partition(":")[2]:
                digests.append(_digest(b"basic " + b64encode(text.encode())))
            else:
                raise ValueError(f"line {number} is neither USER:PASSWORD nor bearer TOKEN")
        if not digests:
            raise ValueError("there is neither a USER:PASSWORD nor a bearer TOKEN in it")
        self._digests = tuple(digests)

    @staticmethod
    def read(file: Path | None) -> HttpCredentials | None:
        """None if there is no file: health and metrics are for everyone then. ConfigError if it cannot be used."""
        if file is None:
            return None
        try:
            return HttpCredentials(file.read_text("utf-8").splitlines())
        except (OSError, ValueError) as error:
            raise ConfigError(f"security.http_credentials_file = '{file}' cannot be used: {error}") from None

    def allow(self, authorization: bytes | None) -> bool:
        """Whether this header is one of those in the file."""
        scheme, _, rest = (authorization or b"").partition(b" ")
        shown = _digest(scheme.lower() + b" " + rest.strip())
        return sum(hmac.compare_digest(shown, digest) for digest in self._digests) > 0


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
