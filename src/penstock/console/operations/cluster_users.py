"""Operations on users of a cluster, who log in to its brokers with SCRAM. Users of the console are in `users.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.admin import UserDescription
from penstock.admin.users import DEFAULT_ITERATIONS, MECHANISMS
from penstock.console.errors import ConflictError, MissingError
from penstock.console.operations.clusters import Clusters, ManagedCluster
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.operations.paging import RowPage, RowQuery, row_page
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog


@dataclass(frozen=True, slots=True)
class ClusterUser:
    """A user, and the iterations of each mechanism with which it can log in."""

    name: str
    mechanisms: Mapping[str, int]


class ClusterUserOperations(Service):
    """Users that are in the metadata of a cluster."""

    def __init__(self, audit: AuditLog, clusters: Clusters) -> None:
        super().__init__(audit)
        self._clusters = clusters

    @query("cluster_users.list", Role.OPERATOR, Scope.CLUSTER)
    async def list(self, caller: Caller, cluster: str, query: RowQuery) -> RowPage[ClusterUser]:
        managed = self._clusters[cluster]
        found = await managed.link.detail("users", lambda admin: admin.users.list())
        rows = [_user(each) for each in found]
        return row_page(rows, query, managed.snapshot.at_ms, ("name", "mechanisms"), lambda row: row.name)

    @change("cluster_users.add", Role.ADMIN, Scope.CLUSTER, hidden=("password",))
    async def add(
        self,
        caller: Caller,
        cluster: str,
        name: str,
        password: str,
        mechanisms: Collection[str] = MECHANISMS,
        iterations: int = DEFAULT_ITERATIONS,
    ) -> Changed[ClusterUser]:
        managed = self._clusters[cluster]
        if await _found(managed, name) is not None:
            raise ConflictError(
                f"there is a user {name} already; nothing was changed. Change its password, or choose another name"
            )
        await managed.link.run(
            lambda admin: admin.users.set_password(name, password, mechanisms=mechanisms, iterations=iterations)
        )
        managed.changed()
        made = ClusterUser(name, dict.fromkeys((each for each in MECHANISMS if each in mechanisms), iterations))
        return Changed(made, None, made)

    @change("cluster_users.set_password", Role.ADMIN, Scope.CLUSTER, hidden=("password",))
    async def set_password(
        self, caller: Caller, cluster: str, name: str, password: str, iterations: int = DEFAULT_ITERATIONS
    ) -> Changed[None]:
        """For the mechanisms that the user has. Connections that exist go on until they have to log in again."""
        managed = self._clusters[cluster]
        before = await _found(managed, name)
        if before is None:
            raise MissingError(f"there is no user {name}; nothing was changed")
        await managed.link.run(
            lambda admin: admin.users.set_password(
                name, password, mechanisms=tuple(before.mechanisms), iterations=iterations
            )
        )
        managed.changed()
        return Changed(None, before, ClusterUser(name, dict.fromkeys(before.mechanisms, iterations)))

    @change("cluster_users.remove", Role.ADMIN, Scope.CLUSTER)
    async def remove(self, caller: Caller, cluster: str, name: str, confirm: str) -> Changed[None]:
        """Its ACLs and quotas stay. Connections that exist go on until they have to log in again."""
        if confirm != name:
            raise ConflictError(f"type the name {name} to confirm; nothing was removed")
        managed = self._clusters[cluster]
        before = await _found(managed, name)
        if before is None:
            raise MissingError(f"there is no user {name}; nothing was removed")
        (await managed.link.run(lambda admin: admin.users.remove([name])))[name]
        managed.changed()
        return Changed(None, before, None)


async def _found(managed: ManagedCluster, name: str) -> ClusterUser | None:
    known = await managed.link.run(lambda admin: admin.users.list())
    return next((_user(each) for each in known if each.name == name), None)


def _user(description: UserDescription) -> ClusterUser:
    return ClusterUser(description.name, description.iterations)
