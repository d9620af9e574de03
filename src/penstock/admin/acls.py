"""Access control lists: adding, listing, removing, and asking what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AclBinding, AclBindingFilter, AclOperation, AclPermissionType, ResourcePatternType
from confluent_kafka.admin import ResourceType as LibraryType

from penstock.admin.cluster_nodes import cluster_nodes
from penstock.admin.configs import ConfigOperations, ConfigResource
from penstock.admin.connection import AdminConnection, Deadline
from penstock.admin.errors import AdminError
from penstock.admin.results import Results
from penstock.errors import Code
from penstock.security.acl_index import AclIndex
from penstock.security.acls import (
    ANY_NAME,
    Acl,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.security.principal import Principal

_AUTHORIZER = "security.authorizer"
_SUPER_USERS = "super.users"
_ADMIN_USER = "security.admin_user"
_ALLOWS_WITHOUT_ACL = "security.allow_everyone_if_no_acl_found"


@dataclass(frozen=True, slots=True)
class AuthorizerState:
    """What decides beside ACLs, by the settings of a broker."""

    is_on: bool
    """Without an authorizer, everyone may do everything."""
    super_users: tuple[Principal, ...]
    """They may do everything, whatever ACLs say."""
    allows_without_acl: bool
    """Whether everyone may do everything with a resource that no ACL is about."""


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether something is allowed, and why."""

    is_allowed: bool
    acl: Acl | None
    """The ACL that decides; None if another rule does, or no ACL speaks of it."""
    reason: str
    """In words for people."""


@dataclass(frozen=True, slots=True)
class RemovalEffect:
    """What the removal of one ACL changes for its principal: on its resource, from its host."""

    acl: Acl
    exists: bool
    before: AccessDecision
    after: AccessDecision


class AclOperations:
    """Operations on ACLs. The client library knows no ACLs about users and delegation tokens."""

    def __init__(self, connection: AdminConnection, configs: ConfigOperations) -> None:
        self._connection = connection
        self._configs = configs

    def list(self, wanted: AclFilter = AclFilter()) -> tuple[Acl, ...]:  # noqa: B008  immutable
        """The ACLs that a filter describes, sorted; all of them without one."""
        deadline = self._connection.deadline()
        sent = self._connection.send(
            lambda: self._connection.client.describe_acls(_library_filter(wanted), request_timeout=deadline.left_s)
        )
        found = tuple(sorted(map(_acl, self._connection.result(sent, deadline))))
        if not found:
            self._refuse_hidden_error(deadline)
        return found

    def add(self, acls: Iterable[Acl]) -> Results[Acl, None]:
        """Adds ACLs; one that exists already is left as it is."""
        deadline = self._connection.deadline()
        wanted = list(dict.fromkeys(acls))
        if not wanted:
            return Results()
        bindings = {self._connection.send(lambda acl=acl: _binding(acl)): acl for acl in wanted}  # type: ignore[misc]
        sent = self._connection.send(
            lambda: self._connection.client.create_acls(list(bindings), request_timeout=deadline.left_s)
        )
        done = self._connection.results({bindings[key]: future for key, future in sent.items()}, deadline)
        return done.map(lambda _: None)

    def remove(self, filters: Iterable[AclFilter]) -> Results[AclFilter, tuple[Acl, ...]]:
        """Removes the ACLs that the filters describe; what each filter found."""
        deadline = self._connection.deadline()
        wanted = list(dict.fromkeys(filters))
        if not wanted:
            return Results()
        asked = {self._connection.send(lambda each=each: _library_filter(each)): each for each in wanted}  # type: ignore[misc]
        sent = self._connection.send(
            lambda: self._connection.client.delete_acls(list(asked), request_timeout=deadline.left_s)
        )
        done = self._connection.results({asked[key]: future for key, future in sent.items()}, deadline)
        return done.map(lambda found: tuple(sorted(map(_acl, found))))

    def check(
        self, principal: Principal, operation: Operation, type_: ResourceType, name: str, *, host: str
    ) -> AccessDecision:
        """Whether a principal may do something from a host, as brokers decide it: by their settings and all ACLs."""
        state = self.authorizer()
        if state is not None and not state.is_on:
            return AccessDecision(True, None, f"brokers have no authorizer ({_AUTHORIZER} = none)")
        found = self.list(AclFilter(type_, name, PatternType.MATCH))
        return _decided(_index(found), state, principal, operation, type_, name, host)

    def preview_removal(self, acls: Iterable[Acl]) -> tuple[RemovalEffect, ...]:
        """What the removal of ACLs would change for those whom they speak of; it removes nothing."""
        gone = tuple(dict.fromkeys(acls))
        state = self.authorizer()
        held = self.list()
        left = [each for each in held if each not in set(gone)]
        return tuple(_effect(acl, held, left, state) for acl in gone)

    def authorizer(self) -> AuthorizerState | None:
        """What decides beside ACLs; None if the settings of brokers may not be read."""
        settings = self._settings()
        if settings is None:
            return None
        supers = [Principal.parse(each) for each in (settings.get(_SUPER_USERS) or "").split(";") if each]
        if admin := settings.get(_ADMIN_USER):
            supers.append(Principal.user(admin))
        return AuthorizerState(
            settings.get(_AUTHORIZER) == "acls",
            tuple(dict.fromkeys(supers)),
            settings.get(_ALLOWS_WITHOUT_ACL) == "true",
        )

    def _refuse_hidden_error(self, deadline: Deadline) -> None:
        """The client library does not tell why it got no ACLs: it may be that they are not to be seen, or are off."""
        sent = self._connection.send(
            lambda: self._connection.client.describe_cluster(
                include_authorized_operations=True, request_timeout=deadline.left_s
            )
        )
        allowed = self._connection.result(sent, deadline).authorized_operations
        # None for no operation at all, too.
        if AclOperation.DESCRIBE not in (allowed or ()):
            raise AdminError(
                Code.CLUSTER_AUTHORIZATION_FAILED.name, "listing ACLs needs permission to DESCRIBE the cluster"
            )
        state = self.authorizer()
        if state is not None and not state.is_on:
            raise AdminError(Code.SECURITY_DISABLED.name, f"brokers have no authorizer: set {_AUTHORIZER} = acls")

    def _settings(self) -> dict[str, str | None] | None:
        """The settings of a broker; None if they may not be read."""
        known = cluster_nodes(self._connection, self._connection.deadline()).addresses
        broker = ConfigResource.broker(min(known))
        try:
            return {name: entry.value for name, entry in self._configs.describe([broker])[broker].items()}
        except AdminError as error:
            if error.code == Code.CLUSTER_AUTHORIZATION_FAILED.name:
                return None
            raise


def _index(acls: Iterable[Acl]) -> AclIndex:
    held: dict[ResourcePattern, tuple[AclEntry, ...]] = {}
    for resource, entry in acls:
        held[resource] = (*held.get(resource, ()), entry)
    return AclIndex(held)


def _decided(
    index: AclIndex,
    state: AuthorizerState | None,
    principal: Principal,
    operation: Operation,
    type_: ResourceType,
    name: str,
    host: str,
) -> AccessDecision:
    """What brokers with an authorizer decide; without `state` its settings are not known."""
    if state is not None and principal in state.super_users:
        return AccessDecision(True, None, f"{principal} is a super user")
    allows_without_acl = state is not None and state.allows_without_acl
    decided = index.decide(principal, host, operation, type_, name, allows_without_acl=allows_without_acl)
    if decided.acl is not None:
        return AccessDecision(decided.is_allowed, decided.acl, str(decided.acl))
    if decided.is_allowed:
        return AccessDecision(True, None, f"no ACL is about it, and {_ALLOWS_WITHOUT_ACL} = true")
    unknown = " (super users are not known: the settings of brokers may not be read)" if state is None else ""
    return AccessDecision(False, None, f"no ACL allows it{unknown}")


def _effect(acl: Acl, held: Sequence[Acl], left: Sequence[Acl], state: AuthorizerState | None) -> RemovalEffect:
    (type_, name, pattern), (principal, host, operation, _) = acl

    def decided(acls: Sequence[Acl]) -> AccessDecision:
        # An ACL about one name says nothing of all names with a prefix.
        about = [each for each in acls if pattern is PatternType.LITERAL or _is_wide(each.resource)]
        return _decided(_index(about), state, principal, operation, type_, name, host)

    return RemovalEffect(acl, acl in held, decided(held), decided(left))


def _is_wide(resource: ResourcePattern) -> bool:
    return resource.pattern is PatternType.PREFIXED or resource.name == ANY_NAME


def _binding(acl: Acl) -> AclBinding:
    (type_, name, pattern), (principal, host, operation, permission) = acl
    return AclBinding(
        LibraryType(type_),
        name,
        ResourcePatternType(pattern),
        str(principal),
        host,
        AclOperation(operation),
        AclPermissionType(permission),
    )


def _library_filter(wanted: AclFilter) -> AclBindingFilter:
    # None stands for anything, which the library's types do not say.
    made: Any = AclBindingFilter
    found: AclBindingFilter = made(
        LibraryType(wanted.type),
        wanted.name,
        ResourcePatternType(wanted.pattern),
        wanted.principal,
        wanted.host,
        AclOperation(wanted.operation),
        AclPermissionType(wanted.permission),
    )
    return found


def _acl(binding: AclBinding) -> Acl:
    # The library's types allow for words and numbers, which it takes and does not give.
    given: Any = binding
    return Acl(
        ResourcePattern(ResourceType(given.restype.value), given.name, PatternType(given.resource_pattern_type.value)),
        AclEntry(
            Principal.parse(given.principal),
            given.host,
            Operation(given.operation.value),
            Permission(given.permission_type.value),
        ),
    )
