"""A login that is on its way: what the console remembers of it is in a cookie, signed, in the browser that began it.

    cookie = base64(JSON) "." HMAC-SHA256

Rules:
- The answer of the provider counts only in the browser that asked: the `state` in its address and the one in the cookie
  are the same. An attacker cannot slip another login into a browser.
- The `nonce` comes back inside of the ID token: a token of another login does not count.
- The `verifier` never leaves browser and console until the code is exchanged (PKCE): a code alone is worth nothing.
- An attempt has an end, and the cookie is taken away with the answer, whatever it says.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass

from penstock.console.oidc.errors import IdentityError

_MAX_COOKIE = 4_000


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """One login."""

    state: str
    nonce: str
    verifier: str
    target: str
    """Where to go afterwards: an address of the console."""
    ends_ms: int

    @classmethod
    def begin(cls, target: str, ends_ms: int) -> LoginAttempt:
        return cls(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48), target, ends_ms)

    @property
    def challenge(self) -> str:
        """What the provider gets to know of the verifier."""
        return _encoded(hashlib.sha256(self.verifier.encode()).digest())

    def cookie(self, key: bytes) -> str:
        content = _encoded(json.dumps(asdict(self)).encode())
        return f"{content}.{_signature(content, key)}"


def attempt_of(cookie: str, key: bytes, state: str, now_ms: int) -> LoginAttempt:
    """The attempt that an answer with this `state` belongs to; IdentityError if there is none in this browser."""
    content, _, signature = cookie[:_MAX_COOKIE].partition(".")
    if not hmac.compare_digest(signature.encode(), _signature(content, key).encode()):
        raise IdentityError("this login was not begun in this browser, or has been used already")
    try:
        found = LoginAttempt(**json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4))))
    except (ValueError, TypeError, binascii.Error):
        raise IdentityError("this login cannot be read") from None
    if not hmac.compare_digest(found.state.encode(), state.encode()):
        raise IdentityError("this login was not begun in this browser, or another one was begun since")
    if found.ends_ms <= now_ms:
        raise IdentityError("this login took too long")
    return found


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _signature(content: str, key: bytes) -> str:
    return hmac.new(key, content.encode(), hashlib.sha256).hexdigest()
