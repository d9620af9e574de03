"""SASL PLAIN (RFC 4616): user and password as they are, `\\0user\\0password`; for encrypted connections."""

from __future__ import annotations

from collections.abc import Callable

from penstock.security.exchange import Accepted, Later, Refused, Step
from penstock.security.scram import ScramCredential, ScramMechanism, is_password_of

MECHANISM = "PLAIN"


class PlainServer:
    """Compares a password with what SCRAM stores of it."""

    def __init__(self, find: Callable[[str], tuple[ScramMechanism, ScramCredential]]) -> None:
        """`find` gives the credential of a user; one that fits no password if there is no such user."""
        self._find = find

    def step(self, message: bytes) -> Step:
        parts = message.split(b"\0")
        try:
            names = [part.decode() for part in parts[:2]]
        except UnicodeDecodeError:
            return Refused("the PLAIN message is not UTF-8")
        if len(parts) != 3 or not parts[1] or not parts[2]:
            return Refused("the PLAIN message is not \\0USER\\0PASSWORD")
        authorized, user = names
        if authorized and authorized != user:
            return Refused("a user cannot log in as another one", user)
        mechanism, credential = self._find(user)
        password = parts[2]

        def compare() -> Accepted | Refused:
            if is_password_of(mechanism, credential, password):
                return Accepted(user)
            return Refused("unknown user or wrong password", user)

        return Later(compare)


class PlainClient:
    """Says the password at once."""

    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()

    def respond(self, challenge: bytes | None) -> bytes | None:
        return self._message if challenge is None else None
