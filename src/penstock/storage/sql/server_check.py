"""Whether servers can be a database group: looks at them with connections of their own, and prepares the primary.

The tables of a group's database say to which cluster and to which group they belong (`queue_cluster`: row 1 has the
cluster, row 2 the group and a random token). So one database cannot be two groups under two names, and a replica that
gets the token is known to replicate from the primary.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from penstock.clock import Clock, SystemClock
from penstock.config.database_address import DatabaseAddress, DialectName
from penstock.errors import PenstockError, StorageError
from penstock.extras import MissingExtraError
from penstock.sql.database import Connection, Database
from penstock.sql.errors import DatabaseError, Duplicate, ReadOnly, SchemaChanged
from penstock.storage.sql import schema

T = TypeVar("T")

_TIMEOUT_MS = 5_000
_REPLICATION_MS = 10_000
"""So long may the first rows take from the primary to a replica."""
_LOOK_S = 0.1
_GROUP_ROW = 2


class ServerRefused(PenstockError):
    """Servers that cannot be a group, and why."""


@dataclass(frozen=True, slots=True)
class GroupServers:
    """The servers that are to be a group."""

    group: str
    cluster_id: str
    addresses: Sequence[DatabaseAddress]
    primary: int
    groups: Collection[str]
    """The names of all groups that the cluster has."""


async def check_servers(servers: GroupServers, *, validate_only: bool = False, clock: Clock | None = None) -> None:
    """Refuses servers that do not answer, replicas that take writes, a primary that does not, servers that do not
    replicate, and servers of another cluster.

    Makes the tables in the primary, and notes there whose they are. With `validate_only` nothing is written, and it is
    not found out whether the replicas replicate and take no writes.
    """
    if len(servers.addresses) > 1 and servers.addresses[0].dialect is DialectName.SQLITE:
        raise ServerRefused("a SQLite file has no replicas; name the primary alone")
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        opened = await _all(_opened(each, stack, clock) for each in servers.addresses)
        primary = opened[servers.primary]
        replicas = [each for index, each in enumerate(opened) if index != servers.primary]
        for database in opened:
            await _check_owner(database, servers)
        if validate_only:
            return
        mark = f"{servers.group} {uuid.uuid4().hex}"
        await _prepare(primary, servers.cluster_id, mark)
        await _all(_check_replica(each, primary.address, mark, clock) for each in replicas)


async def check_primary(address: DatabaseAddress, *, clock: Clock | None = None) -> None:
    """Refuses a server of a group as its primary if it does not answer, or takes no writes."""
    async with AsyncExitStack() as stack:
        database = await _opened(address, stack, clock or SystemClock())
        try:
            await database.run(_write_nothing)
        except ReadOnly as error:
            raise ServerRefused(f"{address} takes no writes; make it writable first") from error
        except DatabaseError as error:
            raise ServerRefused(f"{address} cannot be used: {error}") from error


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Their results, or the first failure; all have ended by then, and need no connection any more."""
    found = await asyncio.gather(*work, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]


async def _opened(address: DatabaseAddress, stack: AsyncExitStack, clock: Clock) -> Database:
    try:
        database = await Database.open(address, connections=1, timeout_ms=_TIMEOUT_MS, clock=clock)
    except (DatabaseError, MissingExtraError) as error:
        raise ServerRefused(f"{address} cannot be used: {error}") from error
    stack.push_async_callback(database.close)
    return database


async def _check_owner(database: Database, servers: GroupServers) -> None:
    address, cluster_id = database.address, await _read(database, schema.cluster_of)
    if cluster_id is None:
        return
    mark = await _read(database, _group_mark)
    if cluster_id != servers.cluster_id:
        raise ServerRefused(
            f"{address} belongs to the cluster {cluster_id}, and not to {servers.cluster_id}; name an empty database"
        )
    if mark is None:
        raise ServerRefused(f"{address} is the database of sql.url of this cluster; name another one")
    group = mark.partition(" ")[0]
    if group != servers.group and group in servers.groups:
        raise ServerRefused(f"{address} is the database of the group '{group}'; name another one")


async def _prepare(primary: Database, cluster_id: str, mark: str) -> None:
    def note(connection: Connection) -> None:
        connection.upsert("queue_cluster", ("id",), ("id", "cluster_id"), [(_GROUP_ROW, mark)])

    try:
        await primary.run_ddl(schema.migrate)
        try:
            await primary.run(lambda connection: schema.set_cluster(connection, cluster_id))
        except Duplicate:
            # It was in the database before, and is ours.
            pass
        await primary.run(note)
    except ReadOnly as error:
        raise ServerRefused(
            f"{primary.address} takes no writes, and is to be the primary: pass the server that does as --primary"
        ) from error
    except (DatabaseError, StorageError) as error:
        raise ServerRefused(f"{primary.address} cannot be used: {error}") from error


async def _check_replica(replica: Database, primary: DatabaseAddress, mark: str, clock: Clock) -> None:
    until_ms = clock.monotonic_ms() + _REPLICATION_MS
    while await _read(replica, _group_mark) != mark:
        if clock.monotonic_ms() >= until_ms:
            raise ServerRefused(
                f"{replica.address} does not replicate from {primary}: a row that was written there did not arrive "
                f"within {_REPLICATION_MS // 1000} seconds"
            )
        await asyncio.sleep(_LOOK_S)
    try:
        await replica.run(_write_nothing)
    except ReadOnly:
        return
    except DatabaseError as error:
        raise ServerRefused(f"{replica.address} cannot be used: {error}") from error
    raise ServerRefused(
        f"{replica.address} takes writes, and is to be a replica: make it read-only, and use a user that may not write "
        "all the same"
    )


async def _read(database: Database, work: Callable[[Connection], T]) -> T | None:
    """What is in the tables; None if there are none."""
    try:
        return await database.run(work, is_read_only=True)
    except SchemaChanged:
        return None
    except DatabaseError as error:
        raise ServerRefused(f"{database.address} cannot be used: {error}") from error


def _group_mark(connection: Connection) -> str | None:
    found = connection.execute("SELECT cluster_id FROM queue_cluster WHERE id = ?", _GROUP_ROW)
    return str(found[0][0]) if found else None


def _write_nothing(connection: Connection) -> None:
    """A server that takes no writes refuses it although there is no such row."""
    connection.change("UPDATE queue_cluster SET cluster_id = cluster_id WHERE id = ?", -1)
