"""The name under which a connection acts, as Kafka writes it: `User:alice`."""

from __future__ import annotations

from typing import NamedTuple

USER = "User"
"""The only type of principal that Kafka's own authorizer knows."""


class Principal(NamedTuple):
    """Permissions and quotas are given to principals."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    @classmethod
    def user(cls, name: str) -> Principal:
        return cls(USER, name)

    @classmethod
    def parse(cls, text: str) -> Principal:
        """The principal that is written so; ValueError if none is."""
        type_, separator, name = text.partition(":")
        if not type_ or not separator or not name:
            raise ValueError(f"'{text}' is not a principal: write TYPE:NAME, such as User:alice")
        return cls(type_, name)


ANONYMOUS = Principal.user("ANONYMOUS")
"""A connection that did not have to log in, and showed no certificate."""
EVERYONE = Principal.user("*")
"""In an ACL: any user."""
