"""Operations on the ACLs of a cluster: list, check, add, remove with a preview; and what decides beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.admin import AccessDecision as Decision
from penstock.admin import (
    Acl,
    AclEntry,
    AclFilter,
    AdminError,
    Operation,
    PatternType,
    Permission,
    Principal,
    ResourcePattern,
    ResourceType,
)
from penstock.console.errors import InvalidError, MissingError
from penstock.console.operations.clusters import Clusters
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.operations.paging import ItemResult, RowPage, RowQuery, row_page
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog
from penstock.security.acls import CLUSTER_NAME, OPERATIONS_OF


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL in words; names and values are those of `penstock acl list --json`."""

    principal: str
    permission: str
    operation: str
    resource_type: str
    resource_name: str
    pattern_type: str
    host: str

    @classmethod
    def of(cls, acl: Acl) -> AclBinding:
        (type_, name, pattern), (principal, host, operation, permission) = acl
        return cls(str(principal), permission.name, operation.name, type_.name, name, pattern.name, host)

    def value(self) -> Acl:
        """InvalidError if it would mean nothing."""
        type_, operation = ResourceType[self.resource_type], Operation[self.operation]
        known = OPERATIONS_OF[type_]
        if operation is not Operation.ALL and operation not in known:
            names = ", ".join(each.name for each in known)
            raise InvalidError(
                f"{operation.name} means nothing for a {_noun(type_)}: use {names} or ALL; nothing was changed"
            )
        if type_ is ResourceType.CLUSTER and (self.resource_name != CLUSTER_NAME or self.pattern_type != "LITERAL"):
            raise InvalidError(f"the cluster is called {CLUSTER_NAME}, without a prefix; nothing was changed")
        resource = ResourcePattern(type_, self.resource_name, PatternType[self.pattern_type])
        entry = AclEntry(principal_of(self.principal), self.host, operation, Permission[self.permission])
        return Acl(resource, entry)


@dataclass(frozen=True, slots=True)
class Authorizer:
    """What decides beside ACLs. Without an authorizer everyone may do everything."""

    is_known: bool
    """Whether the console may read the settings of brokers."""
    is_on: bool
    super_users: tuple[str, ...]
    allows_without_acl: bool


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether something is allowed, and by which rule."""

    is_allowed: bool
    reason: str
    acl: AclBinding | None
    """None if no ACL decides."""

    @classmethod
    def of(cls, decided: Decision) -> AccessDecision:
        acl = None if decided.acl is None else AclBinding.of(decided.acl)
        return cls(decided.is_allowed, decided.reason, acl)


@dataclass(frozen=True, slots=True)
class RemovalEffect:
    """What the removal of one ACL changes for its principal."""

    acl: AclBinding
    exists: bool
    before: AccessDecision
    after: AccessDecision


class AclOperations(Service):
    """ACLs of a cluster."""

    def __init__(self, audit: AuditLog, clusters: Clusters) -> None:
        super().__init__(audit)
        self._clusters = clusters

    @query("acls.authorizer", Role.OPERATOR, Scope.CLUSTER)
    async def authorizer(self, caller: Caller, cluster: str) -> Authorizer:
        link = self._clusters[cluster].link
        found = await link.detail("authorizer", lambda admin: admin.acls.authorizer())
        if found is None:
            return Authorizer(False, True, (), False)
        return Authorizer(True, found.is_on, tuple(map(str, found.super_users)), found.allows_without_acl)

    @query("acls.list", Role.OPERATOR, Scope.CLUSTER)
    async def list(
        self,
        caller: Caller,
        cluster: str,
        query: RowQuery,
        *,
        principal: str | None = None,
        resource_type: str | None = None,
        resource_name: str | None = None,
    ) -> RowPage[AclBinding]:
        """All ACLs, or those of a principal; with a type and a name those that apply to that resource."""
        managed = self._clusters[cluster]
        who = None if principal is None else str(principal_of(principal))
        type_ = ResourceType.ANY if resource_type is None else ResourceType[resource_type]
        wanted = AclFilter(type_, resource_name, PatternType.MATCH if resource_name else PatternType.ANY, who)
        found = await managed.link.detail(("acls", wanted), lambda admin: admin.acls.list(wanted))
        rows = [AclBinding.of(acl) for acl in found]
        return row_page(rows, query, managed.snapshot.at_ms, _COLUMNS, _words)

    @query("acls.check", Role.OPERATOR, Scope.CLUSTER)
    async def check(
        self,
        caller: Caller,
        cluster: str,
        principal: str,
        operation: str,
        resource_type: str,
        resource_name: str,
        host: str = "127.0.0.1",
    ) -> AccessDecision:
        """Whether a principal may do something from a host, and by which rule, as brokers decide it."""
        who, type_ = principal_of(principal), ResourceType[resource_type]
        if Operation[operation] not in OPERATIONS_OF[type_]:
            names = ", ".join(each.name for each in OPERATIONS_OF[type_])
            raise InvalidError(f"{operation} means nothing for a {_noun(type_)}: use {names}")
        decided = await self._clusters[cluster].link.run(
            lambda admin: admin.acls.check(who, Operation[operation], type_, resource_name, host=host)
        )
        return AccessDecision.of(decided)

    @change("acls.add", Role.ADMIN, Scope.CLUSTER)
    async def add(
        self, caller: Caller, cluster: str, principal: str, acls: Sequence[AclBinding]
    ) -> Changed[tuple[ItemResult, ...]]:
        """Adds ACLs of one principal; one that exists already is left as it is."""
        managed = self._clusters[cluster]
        wanted = [each.value() for each in acls]
        done = await managed.link.run(lambda admin: admin.acls.add(wanted))
        if not done.values:
            done.all()
        managed.changed()
        results = _results(wanted, done.errors)
        return Changed(results, None, [str(acl) for acl in done.values], _problem(results))

    @query("acls.preview_removal", Role.OPERATOR, Scope.CLUSTER)
    async def preview_removal(
        self, caller: Caller, cluster: str, acls: Sequence[AclBinding]
    ) -> tuple[RemovalEffect, ...]:
        """What those whom the ACLs speak of could do before and after; nothing is removed."""
        wanted = [each.value() for each in acls]
        effects = await self._clusters[cluster].link.run(lambda admin: admin.acls.preview_removal(wanted))
        return tuple(
            RemovalEffect(
                AclBinding.of(each.acl), each.exists, AccessDecision.of(each.before), AccessDecision.of(each.after)
            )
            for each in effects
        )

    @change("acls.remove", Role.ADMIN, Scope.CLUSTER)
    async def remove(self, caller: Caller, cluster: str, acls: Sequence[AclBinding]) -> Changed[tuple[ItemResult, ...]]:
        """Removes exactly these; the result names those that were gone already."""
        managed = self._clusters[cluster]
        wanted = {_exactly(acl): acl for acl in (each.value() for each in acls)}
        done = await managed.link.run(lambda admin: admin.acls.remove(wanted))
        if not any(done.values.values()):
            done.all()
            raise MissingError("there are no such ACLs (any more); nothing was removed")
        managed.changed()
        gone = [acl for filter_, acl in wanted.items() if not done.values.get(filter_, (acl,))]
        errors = {wanted[filter_]: error for filter_, error in done.errors.items()}
        errors |= {acl: AdminError("RESOURCE_NOT_FOUND", "there is no such ACL; nothing was removed") for acl in gone}
        results = _results(list(wanted.values()), errors)
        before = [str(acl) for removed in done.values.values() for acl in removed]
        return Changed(results, before, None, _problem(results))


def principal_of(text: str) -> Principal:
    """`User:alice`, or just `alice`."""
    try:
        return Principal.parse(text) if ":" in text else Principal.parse(f"User:{text}")
    except ValueError as error:
        raise InvalidError(f"{error}; nothing was changed") from None


_COLUMNS = tuple(AclBinding.__dataclass_fields__)


def _words(row: AclBinding) -> str:
    return " ".join((row.principal, row.permission, row.operation, row.resource_type, row.resource_name, row.host))


def _noun(type_: ResourceType) -> str:
    return type_.name.lower().replace("_", " ")


def _exactly(acl: Acl) -> AclFilter:
    (type_, name, pattern), (principal, host, operation, permission) = acl
    return AclFilter(type_, name, pattern, str(principal), host, operation, permission)


def _results(acls: Sequence[Acl], failed: Mapping[Acl, AdminError]) -> tuple[ItemResult, ...]:
    return tuple(
        ItemResult(str(acl), False, failed[acl].code, failed[acl].message)
        if acl in failed
        else ItemResult(str(acl), True)
        for acl in acls
    )


def _problem(results: Sequence[ItemResult]) -> str:
    return "; ".join(f"{each.item}: {each.error}" for each in results if not each.is_done)
