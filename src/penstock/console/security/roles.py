"""Roles, grants and callers: who asks, and what that lets them do. Pure.

A user has a role everywhere, and grants that give a role on the topics or groups of a prefix. What counts for one topic
is the highest of them. A user with the role `none` sees only what grants show.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.errors import ConfigError

_RANKS = {"none": 0, "viewer": 1, "operator": 2, "admin": 3}


class Role(Enum):
    """What a user may do: look, operate what runs, or govern."""

    NONE = "none"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        return _RANKS[self.value]

    def covers(self, needed: Role) -> bool:
        return self.rank >= needed.rank


class GrantKind(Enum):
    """What a grant is about."""

    TOPIC = "topic"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Grant:
    """A role on the topics or groups whose names begin with a prefix, in one cluster or (None) in all."""

    kind: GrantKind
    prefix: str
    role: Role
    cluster: str | None = None

    def covers(self, kind: GrantKind, cluster: str, name: str) -> bool:
        return self.kind is kind and self.cluster in (None, cluster) and name.startswith(self.prefix)


class Via(Enum):
    """How a caller has come in."""

    SESSION = "session"
    TOKEN = "token"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The user or token that calls an operation, and its address."""

    name: str
    role: Role
    grants: tuple[Grant, ...] = ()
    address: str = ""
    via: Via = Via.SESSION
    session: str | None = None
    """The key of the session in our table; never the cookie itself."""
    token: str | None = None
    """The id of the token in our table; never its text."""

    def role_on_topic(self, cluster: str, topic: str) -> Role:
        return self._highest(GrantKind.TOPIC, cluster, topic)

    def role_on_group(self, cluster: str, group: str) -> Role:
        return self._highest(GrantKind.GROUP, cluster, group)

    def sees_topic(self, cluster: str, topic: str) -> bool:
        return self.role_on_topic(cluster, topic).covers(Role.VIEWER)

    def sees_group(self, cluster: str, group: str) -> bool:
        return self.role_on_group(cluster, group).covers(Role.VIEWER)

    @property
    def highest_role(self) -> Role:
        """On anything at all: what pages offer."""
        return max((self.role, *(grant.role for grant in self.grants)), key=lambda role: role.rank)

    def _highest(self, kind: GrantKind, cluster: str, name: str) -> Role:
        roles = [self.role, *(grant.role for grant in self.grants if grant.covers(kind, cluster, name))]
        return max(roles, key=lambda role: role.rank)


def parse_role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no role; roles are {', '.join(role.value for role in Role)}") from None
