"""Operations on brokers and database groups: load, draining, moves; adding, testing and removing databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.admin import (
    BrokerDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    DatabaseGroupDescription,
    Reassignment,
    TopicPartition,
)
from penstock.config.database_address import DatabaseAddress
from penstock.config.throttle import FOLLOWER_RATE
from penstock.console.errors import ConflictError, InvalidError, MissingError
from penstock.console.operations.clusters import Clusters
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.operations.paging import ItemResult
from penstock.console.polling.snapshot import BrokerRow
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog
from penstock.sql.database import Database
from penstock.sql.errors import DatabaseError

_TEST_TIMEOUT_MS = 5_000
_THROTTLE = FOLLOWER_RATE.name


@dataclass(frozen=True, slots=True)
class BrokerDetail:
    """A broker with its settings."""

    broker: BrokerRow
    settings: tuple[ConfigEntry, ...]


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A partition that is being moved, and how much of it has arrived."""

    move: Reassignment
    size_bytes: int | None
    """Of the replica that leads."""
    arrived_bytes: int | None
    """Of the new replica that has the least; None if brokers do not tell."""


@dataclass(frozen=True, slots=True)
class MoveThrottle:
    """Bytes a second that each broker copies for new replicas; None: as its configuration file says."""

    bytes_per_s: Mapping[int, int | None]


class BrokerOperations(Service):
    """Brokers of a cluster."""

    def __init__(self, audit: AuditLog, clusters: Clusters) -> None:
        super().__init__(audit)
        self._clusters = clusters

    @query("brokers.list", Role.VIEWER, Scope.CLUSTER)
    async def list(self, caller: Caller, cluster: str) -> tuple[BrokerRow, ...]:
        return self._clusters[cluster].snapshot.brokers

    @query("brokers.describe", Role.VIEWER, Scope.CLUSTER)
    async def describe(self, caller: Caller, cluster: str, broker: int) -> BrokerDetail:
        managed = self._clusters[cluster]
        row = next((each for each in managed.snapshot.brokers if each.id == broker), None)
        if row is None:
            raise MissingError(f"there is no broker {broker} in {cluster}")
        resource = ConfigResource.broker(broker)
        found = await managed.link.detail(("broker", broker), lambda admin: admin.configs.describe([resource]))
        return BrokerDetail(row, tuple(found.values.get(resource, {}).values()))

    @change("brokers.drain", Role.ADMIN, Scope.CLUSTER)
    async def drain(self, caller: Caller, cluster: str, broker: int) -> Changed[None]:
        """Has everything moved off a broker; the list shows what is left on it."""
        return await self._drain(cluster, broker, is_drained=True)

    @change("brokers.undrain", Role.ADMIN, Scope.CLUSTER)
    async def undrain(self, caller: Caller, cluster: str, broker: int) -> Changed[None]:
        return await self._drain(cluster, broker, is_drained=False)

    @query("moves.list", Role.VIEWER, Scope.CLUSTER)
    async def moves(self, caller: Caller, cluster: str) -> tuple[MoveRow, ...]:
        """Partitions that are being moved."""
        managed = self._clusters[cluster]
        found = await managed.link.detail("moves", lambda admin: admin.reassignments.list())
        if not found:
            return ()
        folders = await managed.link.detail("log dirs", lambda admin: admin.log_dirs.describe())
        sizes: dict[tuple[int, TopicPartition], int] = {}
        for broker, held in folders.values.items():
            for folder in held:
                for at, size in folder.sizes.items():
                    sizes[broker, at] = max(size, sizes.get((broker, at), 0))
        leaders = {
            TopicPartition(name, row.index): row.leader
            for name in {each.partition.topic for each in found}
            for row in managed.snapshot.partitions.get(name, ())
        }
        return tuple(_move_row(each, leaders.get(each.partition), sizes) for each in found)

    @query("moves.throttle", Role.VIEWER, Scope.CLUSTER)
    async def throttle(self, caller: Caller, cluster: str) -> MoveThrottle:
        """What brokers copy at most for replicas that are being moved."""
        resources = self._resources(cluster)
        found = await self._clusters[cluster].link.detail("throttle", lambda admin: admin.configs.describe(resources))
        return _throttle(found.values)

    @change("moves.set_throttle", Role.ADMIN, Scope.CLUSTER)
    async def set_throttle(self, caller: Caller, cluster: str, bytes_per_s: int | None) -> Changed[MoveThrottle]:
        """Limits each broker, or returns it to its configuration; moves that are under way follow at once."""
        managed = self._clusters[cluster]
        resources = self._resources(cluster)
        before = _throttle((await managed.link.run(lambda admin: admin.configs.describe(resources))).all())
        wanted = (
            ConfigChange.delete(_THROTTLE) if bytes_per_s is None else ConfigChange.set(_THROTTLE, str(bytes_per_s))
        )
        done = await managed.link.run(lambda admin: admin.configs.alter({each: [wanted] for each in resources}))
        managed.changed()
        problem = "; ".join(f"{at}: {error.message}" for at, error in done.errors.items())
        after = _throttle((await managed.link.run(lambda admin: admin.configs.describe(resources))).all())
        return Changed(after, before.bytes_per_s, after.bytes_per_s, problem)

    @change("moves.start", Role.ADMIN, Scope.CLUSTER)
    async def move(
        self, caller: Caller, cluster: str, replicas: Mapping[TopicPartition, Sequence[int]]
    ) -> Changed[tuple[ItemResult, ...]]:
        """Starts to move partitions to brokers, the preferred leader first."""
        managed = self._clusters[cluster]
        done = await managed.link.run(lambda admin: admin.reassignments.move(replicas))
        managed.changed()
        results = [ItemResult(str(at), True) for at in done.values]
        results += [ItemResult(str(at), False, error.code, error.message) for at, error in done.errors.items()]
        problem = "; ".join(f"{each.item}: {each.error}" for each in results if not each.is_done)
        return Changed(tuple(results), None, {str(at): list(replicas[at]) for at in done.values}, problem)

    @change("moves.cancel", Role.ADMIN, Scope.CLUSTER)
    async def cancel_moves(
        self, caller: Caller, cluster: str, partitions: Sequence[TopicPartition]
    ) -> Changed[tuple[ItemResult, ...]]:
        """The partitions stay where they were."""
        managed = self._clusters[cluster]
        done = await managed.link.run(lambda admin: admin.reassignments.cancel(partitions))
        managed.changed()
        results = [ItemResult(str(at), True) for at in done.values]
        results += [ItemResult(str(at), False, error.code, error.message) for at, error in done.errors.items()]
        problem = "; ".join(f"{each.item}: {each.error}" for each in results if not each.is_done)
        return Changed(tuple(results), None, {"cancelled": [str(at) for at in done.values]}, problem)

    def _resources(self, cluster: str) -> Sequence[ConfigResource]:
        """The brokers that answer."""
        brokers = self._clusters[cluster].snapshot.brokers
        return [ConfigResource.broker(each.id) for each in brokers if each.address is not None]

    async def _drain(self, cluster: str, broker: int, *, is_drained: bool) -> Changed[None]:
        managed = self._clusters[cluster]

        def describe(found: BrokerDescription) -> Mapping[str, object]:
            return {"state": found.state.value, "replicas": len(found.replicas)}

        done = await managed.link.run(
            lambda admin: (admin.brokers.drain if is_drained else admin.brokers.undrain)([broker])
        )
        managed.changed()
        return Changed(None, describe(done[broker]), {"draining": is_drained})


class DatabaseOperations(Service):
    """Database groups: where topics in SQL storage are."""

    def __init__(self, audit: AuditLog, clusters: Clusters) -> None:
        super().__init__(audit)
        self._clusters = clusters

    @query("databases.list", Role.VIEWER, Scope.CLUSTER)
    async def list(self, caller: Caller, cluster: str) -> tuple[DatabaseGroupDescription, ...]:
        """Groups of servers with what is in them; addresses are without passwords."""
        return await self._clusters[cluster].link.detail("databases", lambda admin: admin.databases.list())

    @change("databases.test", Role.ADMIN, Scope.CLUSTER, hidden=("address",))
    async def test(self, caller: Caller, cluster: str, address: str) -> Changed[ItemResult]:
        """Whether the console reaches a database; brokers may be in another network. Nothing is changed in it."""
        self._clusters[cluster]
        parsed = DatabaseAddress.parse(address)
        if parsed.dialect.value == "sqlite":
            raise InvalidError("a database node is a server, not a file; nothing was tested")
        result = await _tested(parsed)
        return Changed(result, None, {"server": parsed.server, "answers": result.is_done}, result.error)

    @change("databases.add", Role.ADMIN, Scope.CLUSTER, hidden=("servers",))
    async def add(self, caller: Caller, cluster: str, name: str, servers: Sequence[str]) -> Changed[None]:
        """A group of servers; the first is the primary. The broker connects to all of them."""
        managed = self._clusters[cluster]
        public = [DatabaseAddress.parse(each).public_text for each in servers]
        await managed.link.run(lambda admin: admin.databases.add(name, servers))
        managed.changed()
        return Changed(None, None, {"servers": public})

    @change("databases.set_servers", Role.ADMIN, Scope.CLUSTER, hidden=("servers",))
    async def set_servers(self, caller: Caller, cluster: str, name: str, servers: Sequence[str]) -> Changed[None]:
        managed = self._clusters[cluster]
        before = (await managed.link.run(lambda admin: admin.databases.describe([name])))[name]
        public = [DatabaseAddress.parse(each).public_text for each in servers]
        await managed.link.run(lambda admin: admin.databases.set_servers(name, servers))
        managed.changed()
        return Changed(None, {"servers": [each.address for each in before.servers]}, {"servers": public})

    @change("databases.promote", Role.ADMIN, Scope.CLUSTER)
    async def promote(self, caller: Caller, cluster: str, name: str, server: str) -> Changed[None]:
        managed = self._clusters[cluster]
        before = (await managed.link.run(lambda admin: admin.databases.describe([name])))[name]
        await managed.link.run(lambda admin: admin.databases.promote(name, server))
        managed.changed()
        return Changed(None, {"primary": before.primary.name}, {"primary": server})

    @change("databases.drain", Role.ADMIN, Scope.CLUSTER)
    async def drain(self, caller: Caller, cluster: str, name: str, is_drained: bool = True) -> Changed[None]:
        """Has the partitions of a group moved to others, or lets it have partitions again."""
        managed = self._clusters[cluster]
        await managed.link.run(
            lambda admin: (admin.databases.drain if is_drained else admin.databases.undrain)([name])[name]
        )
        managed.changed()
        return Changed(None, None, {"draining": is_drained})

    @change("databases.remove", Role.ADMIN, Scope.CLUSTER)
    async def remove(self, caller: Caller, cluster: str, name: str, confirm: str) -> Changed[None]:
        """Forgets a group that has no partitions. What is in its databases stays there."""
        if confirm != name:
            raise ConflictError(f"type the name {name} to confirm; nothing was removed")
        managed = self._clusters[cluster]
        before = (await managed.link.run(lambda admin: admin.databases.describe([name])))[name]
        await managed.link.run(lambda admin: admin.databases.remove([name])[name])
        managed.changed()
        return Changed(None, {"servers": [each.address for each in before.servers]}, None)


def _throttle(found: Mapping[ConfigResource, Mapping[str, ConfigEntry]]) -> MoveThrottle:
    entries = {int(resource.name): settings.get(_THROTTLE) for resource, settings in found.items()}
    return MoveThrottle(
        {
            id: None if entry is None or entry.is_default or entry.value is None else int(entry.value)
            for id, entry in entries.items()
        }
    )


def _move_row(move: Reassignment, leader: int | None, sizes: Mapping[tuple[int, TopicPartition], int]) -> MoveRow:
    size = None if leader is None else sizes.get((leader, move.partition))
    arrived = [sizes.get((broker, move.partition), 0) for broker in move.adding]
    return MoveRow(move, size, min(arrived) if arrived else None)


async def _tested(address: DatabaseAddress) -> ItemResult:
    try:
        database = await Database.open(address, connections=1, timeout_ms=_TEST_TIMEOUT_MS)
    except DatabaseError as error:
        return ItemResult(address.server, False, type(error).__name__, str(error))
    await database.close()
    return ItemResult(address.server, True)
