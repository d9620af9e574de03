"""Decides by ACLs, with the rules of Kafka's StandardAuthorizer.

- An entry that denies wins over any that allows.
- To be allowed READ, WRITE, DELETE or ALTER is to be allowed DESCRIBE; ALTER_CONFIGS brings DESCRIBE_CONFIGS. Denials
  imply nothing.
- What no entry speaks of is denied. If everyone is allowed where there is no ACL, that holds for resources that no ACL
  is about, for any principal.

An index is immutable, and made anew from the one before when ACLs have changed: what has not is taken over. A decision
looks at the pattern of that very name, at that of all names, and at one prefix for each length that prefixes have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.security.acls import (
    ANY_HOST,
    ANY_NAME,
    Acl,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.security.principal import EVERYONE, Principal

Acls = Mapping[ResourcePattern, tuple[AclEntry, ...]]
"""All ACLs of a cluster."""
Rules = Mapping[Principal, tuple[AclEntry, ...]]
"""The entries of one pattern, by principal."""

_IMPLYING: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
_GIVING: Mapping[Operation, frozenset[Operation]] = {
    operation: frozenset({Operation.ALL, operation}) | _IMPLYING.get(operation, frozenset()) for operation in Operation
}
"""The operations that an entry may allow for one to be allowed."""


class Decision(NamedTuple):
    """Whether something is allowed, and the ACL that says so; None if there is none that speaks of it."""

    is_allowed: bool
    acl: Acl | None = None


class AclIndex:
    """The ACLs at one moment."""

    def __init__(self, acls: Acls, before: AclIndex | None = None) -> None:
        self._acls = acls
        self._rules: dict[ResourcePattern, Rules] = {}
        lengths: dict[ResourceType, set[int]] = {}
        for resource, entries in acls.items():
            is_same = before is not None and before._acls.get(resource) is entries
            self._rules[resource] = (
                before._rules[resource] if is_same and before is not None else _by_principal(entries)
            )
            if resource.pattern is PatternType.PREFIXED:
                lengths.setdefault(resource.type, set()).add(len(resource.name))
        self._prefix_lengths = {type_: tuple(sorted(found)) for type_, found in lengths.items()}

    def decide(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        type_: ResourceType,
        name: str,
        *,
        allows_without_acl: bool = False,
    ) -> Decision:
        allowing: Acl | None = None
        has_acl = False
        for resource, rules in self._about(type_, name):
            has_acl = True
            for entry in _of(rules, principal, host):
                if entry.permission is Permission.DENY:
                    if entry.operation in (Operation.ALL, operation):
                        return Decision(False, Acl(resource, entry))
                elif allowing is None and entry.operation in _GIVING[operation]:
                    allowing = Acl(resource, entry)
        if allowing is not None:
            return Decision(True, allowing)
        return Decision(allows_without_acl and not has_acl)

    def decide_for_any(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        type_: ResourceType,
        *,
        allows_without_acl: bool = False,
    ) -> bool:
        """Whether there is a name of this type with which the operation is allowed (KIP-679)."""
        allowed: list[ResourcePattern] = []
        denied: set[ResourcePattern] = set()
        everything = ResourcePattern(type_, ANY_NAME)
        for resource, rules in self._rules.items():
            if resource.type is not type_:
                continue
            for entry in _of(rules, principal, host):
                if entry.operation not in (Operation.ALL, operation):
                    continue
                if entry.permission is Permission.DENY:
                    denied.add(resource)
                else:
                    allowed.append(resource)
        if everything in denied:
            return False
        if allows_without_acl and everything not in self._rules:
            # There is always a name that no ACL is about.
            return True
        return any(not self._is_within(resource, denied) for resource in allowed)

    def _about(self, type_: ResourceType, name: str) -> Iterator[tuple[ResourcePattern, Rules]]:
        """The patterns that a resource matches, with their rules."""
        rules_of = self._rules
        for exact in (name, ANY_NAME) if name != ANY_NAME else (ANY_NAME,):
            resource = ResourcePattern(type_, exact)
            if (rules := rules_of.get(resource)) is not None:
                yield resource, rules
        for length in self._prefix_lengths.get(type_, ()):
            if length > len(name):
                return
            resource = ResourcePattern(type_, name[:length], PatternType.PREFIXED)
            if (rules := rules_of.get(resource)) is not None:
                yield resource, rules

    def _is_within(self, resource: ResourcePattern, denied: set[ResourcePattern]) -> bool:
        """Whether all that a pattern allows is denied: by the same name, or by a prefix of it."""
        type_, name, pattern = resource
        if name == ANY_NAME and pattern is PatternType.LITERAL:
            return False
        if pattern is PatternType.LITERAL and resource in denied:
            return True
        lengths = self._prefix_lengths.get(type_, ())
        return any(ResourcePattern(type_, name[:length], PatternType.PREFIXED) in denied for length in lengths)


def _by_principal(entries: tuple[AclEntry, ...]) -> Rules:
    found: dict[Principal, list[AclEntry]] = {}
    for entry in entries:
        found.setdefault(entry.principal, []).append(entry)
    return {principal: tuple(those) for principal, those in found.items()}


def _of(rules: Rules, principal: Principal, host: str) -> Iterator[AclEntry]:
    """The entries that speak of a principal at a host."""
    for named in (principal, EVERYONE) if principal != EVERYONE else (EVERYONE,):
        for entry in rules.get(named, ()):
            if entry.host in (ANY_HOST, host):
                yield entry
