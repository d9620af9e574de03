"""Decides what principals may do, again and again: by super users, ACLs, and earlier decisions.

Decisions are kept until an ACL changes. There is one table for each caller and operation, from the name of a resource
to whether it is allowed, so a request that names many topics costs one look-up for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.security.acl_index import AclIndex, Acls, Decision
from penstock.security.acls import OPERATIONS_OF, Operation, ResourceType
from penstock.security.principal import Principal

_NO_ACLS: Acls = {}


class AuthorizerRules(NamedTuple):
    """What holds beside ACLs."""

    super_users: frozenset[Principal] = frozenset()
    """May do everything, whatever ACLs say."""
    allows_without_acl: bool = False
    """Whether everyone may do everything with a resource that no ACL is about."""
    kept_decisions: int = 100_000


class Decisions(dict[str, bool]):
    """Whether one caller may do one operation, by the name of the resource; what is not in it yet is decided."""

    __slots__ = ("_decide",)

    def __init__(self, decide: Callable[[str], bool]) -> None:
        super().__init__()
        self._decide = decide

    def __missing__(self, name: str) -> bool:
        allowed = self[name] = self._decide(name)
        return allowed


class Authorizer:
    """Decides by the ACLs of the moment."""

    def __init__(self, rules: AuthorizerRules, acls: Acls = _NO_ACLS) -> None:
        self._rules = rules
        self._index = AclIndex(acls)
        self._kept: dict[tuple[Principal, str, Operation, ResourceType], Decisions] = {}
        self._kept_for_any: dict[tuple[Principal, str, Operation, ResourceType], bool] = {}
        self._count = 0

    def change(self, acls: Acls) -> None:
        """These are all ACLs from now on."""
        self._index = AclIndex(acls, self._index)
        self._forget()

    @property
    def kept(self) -> int:
        """How many decisions are kept."""
        return self._count

    def decisions(
        self, principal: Principal, host: str, operation: Operation, type_: ResourceType
    ) -> Mapping[str, bool]:
        """Whether a caller may do an operation, by the name of the resource. Hold it no longer than one request."""
        key = (principal, host, operation, type_)
        found = self._kept.get(key)
        if found is None:
            self._make_room()

            def decide(name: str) -> bool:
                self._make_room()
                return self.decide(principal, host, operation, type_, name).is_allowed

            found = self._kept[key] = Decisions(decide)
        return found

    def decide(self, principal: Principal, host: str, operation: Operation, type_: ResourceType, name: str) -> Decision:
        """The decision with its reason; nothing is kept of it."""
        if principal in self._rules.super_users:
            return Decision(True)
        return self._index.decide(
            principal, host, operation, type_, name, allows_without_acl=self._rules.allows_without_acl
        )

    def may_with_any(self, principal: Principal, host: str, operation: Operation, type_: ResourceType) -> bool:
        """Whether there is a resource of this type with which the operation is allowed."""
        if principal in self._rules.super_users:
            return True
        key = (principal, host, operation, type_)
        found = self._kept_for_any.get(key)
        if found is None:
            self._make_room()
            found = self._kept_for_any[key] = self._index.decide_for_any(
                principal, host, operation, type_, allows_without_acl=self._rules.allows_without_acl
            )
        return found

    def is_super_user(self, principal: Principal) -> bool:
        return principal in self._rules.super_users

    def operations(self, principal: Principal, host: str, type_: ResourceType, name: str) -> int:
        """What a caller may do with a resource, one bit for each operation, as responses tell it."""
        return bits(
            operation for operation in OPERATIONS_OF[type_] if self.decisions(principal, host, operation, type_)[name]
        )

    def _make_room(self) -> None:
        if self._count >= self._rules.kept_decisions:
            self._forget()
        self._count += 1

    def _forget(self) -> None:
        # New tables, not empty ones: a request that is under way goes on with what it has.
        self._kept = {}
        self._kept_for_any = {}
        self._count = 0


def bits(operations: Iterable[Operation]) -> int:
    """Operations as responses list them."""
    return sum(1 << operation for operation in operations)
