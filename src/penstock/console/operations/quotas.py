"""Operations on the quotas of a cluster: what users, client ids and addresses are limited to, on each broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.admin import QuotaDescription, QuotaEntity
from penstock.console.errors import InvalidError, MissingError
from penstock.console.operations.clusters import Clusters, ManagedCluster
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.operations.paging import RowPage, RowQuery, row_page
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog
from penstock.security.quota_entity import quota_entity
from penstock.security.quota_keys import checked_limit

EntityNames = Mapping[str, str | None]
"""The names by type (`user`, `client-id`, `ip`); None stands for all that have no quota of their own."""


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """A quota: whom it is for, and its limits by Kafka's names for them."""

    name: str
    """In words."""
    entity: Mapping[str, str | None]
    limits: Mapping[str, float]


class QuotaOperations(Service):
    """Quotas of a cluster."""

    def __init__(self, audit: AuditLog, clusters: Clusters) -> None:
        super().__init__(audit)
        self._clusters = clusters

    @query("quotas.list", Role.VIEWER, Scope.CLUSTER)
    async def list(self, caller: Caller, cluster: str, query: RowQuery) -> RowPage[QuotaRow]:
        managed = self._clusters[cluster]
        found = await managed.link.detail("quotas", lambda admin: admin.quotas.list())
        rows = [_row(each) for each in found]
        return row_page(rows, query, managed.snapshot.at_ms, ("name", "limits"), lambda row: row.name)

    @change("quotas.set", Role.ADMIN, Scope.CLUSTER)
    async def set(
        self, caller: Caller, cluster: str, entity: EntityNames, limits: Mapping[str, float]
    ) -> Changed[QuotaRow]:
        """Sets limits; other limits of the same entity stay."""
        managed = self._clusters[cluster]
        whom = _entity(entity)
        try:
            wanted = dict(_checked(whom, key, value) for key, value in limits.items())
        except ValueError as error:
            raise InvalidError(f"{error} Nothing was changed") from None
        before = await _limits(managed, whom)
        (await managed.link.run(lambda admin: admin.quotas.alter({whom: wanted})))[whom]
        managed.changed()
        after = _row(QuotaDescription(whom, {**before, **wanted}))
        return Changed(after, before or None, after.limits)

    @change("quotas.remove", Role.ADMIN, Scope.CLUSTER)
    async def remove(
        self, caller: Caller, cluster: str, entity: EntityNames, keys: Sequence[str] = ()
    ) -> Changed[None]:
        """Takes limits away, all of them if none is named."""
        managed = self._clusters[cluster]
        whom = _entity(entity)
        before = await _limits(managed, whom)
        missing = [key for key in keys if key not in before]
        if missing or not before:
            raise MissingError(f"{whom} has no quota {', '.join(missing)}".rstrip() + "; nothing was removed")
        gone = tuple(keys) or tuple(before)
        (await managed.link.run(lambda admin: admin.quotas.alter({whom: dict.fromkeys(gone)})))[whom]
        managed.changed()
        return Changed(None, before, {key: value for key, value in before.items() if key not in gone} or None)


def _entity(names: EntityNames) -> QuotaEntity:
    try:
        return quota_entity(names)
    except ValueError as error:
        raise InvalidError(f"{error} Nothing was changed") from None


def _checked(entity: QuotaEntity, key: str, value: float) -> tuple[str, float]:
    found, limit = checked_limit(entity, key, value)
    return found.value, limit


async def _limits(managed: ManagedCluster, entity: QuotaEntity) -> Mapping[str, float]:
    found = await managed.link.run(lambda admin: admin.quotas.list(entity.names))
    return next((each.limits for each in found if each.entity == entity), {})


def _row(description: QuotaDescription) -> QuotaRow:
    names = {type_: name or None for type_, name in description.entity.names.items()}
    return QuotaRow(str(description.entity), names, description.limits)
