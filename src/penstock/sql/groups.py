"""The database groups that this broker uses, by name: the default one, and those that the metadata says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.clock import Clock
from penstock.config.database_address import DatabaseAddress
from penstock.logs import fields
from penstock.sql.database import Database
from penstock.sql.errors import GroupAway
from penstock.sql.group import DatabaseGroup, GroupServer
from penstock.sql.server_status import ServerStatus

logger = logging.getLogger(__name__)

DEFAULT_GROUP = "default"
"""Of the database in `sql.url`: always there, and without replicas."""


class GroupAddresses(NamedTuple):
    """A group as the metadata describes it, with passwords."""

    servers: tuple[DatabaseAddress, ...]
    primary: int = 0
    generation: int = 0


class DatabaseGroups:
    """Follows the metadata; `close` closes all groups and the default database."""

    def __init__(self, default: Database, clock: Clock | None = None) -> None:
        """The servers of other groups get as many connections as the default database, and its time limit."""
        self._database = default
        self._clock = clock
        self._groups = {DEFAULT_GROUP: DatabaseGroup(DEFAULT_GROUP, [GroupServer(default)], clock=clock)}
        self.default.is_alone = True
        self._closing: set[asyncio.Task[None]] = set()
        self._on_change: list[Callable[[DatabaseGroup], None]] = []

    @property
    def default(self) -> DatabaseGroup:
        return self._groups[DEFAULT_GROUP]

    def __iter__(self) -> Iterator[DatabaseGroup]:
        return iter(list(self._groups.values()))

    def __getitem__(self, name: str) -> DatabaseGroup:
        """GroupAway if there is no such group, or this broker cannot use it."""
        group = self._groups.get(name)
        if group is None:
            raise GroupAway(f'this broker does not know the database group "{name}", or lacks the key to its passwords')
        return group

    def without_writes(self) -> frozenset[str]:
        """The names of the groups that take none now, as far as is known."""
        return frozenset(name for name, group in self._groups.items() if not group.takes_writes)

    def status(self, group: str) -> Sequence[ServerStatus]:
        """The servers of a group in the order of the metadata; none if this broker does not use the group."""
        found = self._groups.get(group)
        return () if found is None else [_status(found, server) for server in found.servers]

    def on_change(self, callback: Callable[[DatabaseGroup], None]) -> None:
        """Calls back when a group begins or ceases to take writes, or has another primary."""
        self._on_change.append(callback)

    def start(self) -> None:
        """Begins to ask the servers how they are."""
        for group in self._groups.values():
            group.on_change(self._changed)
            group.start()

    def follow(self, wanted: Mapping[str, GroupAddresses]) -> None:
        """Becomes what the metadata says: servers that are gone are closed when their work is done."""
        for name in [name for name in self._groups if name != DEFAULT_GROUP and name not in wanted]:
            self._close_later(self._groups.pop(name).close())
            logger.info("closing a database group that was removed", extra=fields(group=name))
        for name, addresses in wanted.items():
            group = self._groups.get(name)
            if group is None:
                servers = [self._new_server(address) for address in addresses.servers]
                group = DatabaseGroup(name, servers, addresses.primary, addresses.generation, self._clock)
                self._groups[name] = group
                group.on_change(self._changed)
                group.start()
                logger.info("opened a database group", extra=fields(group=name, primary=str(group.primary.address)))
            else:
                self._change(group, addresses)
        self.default.is_alone = len(self._groups) == 1

    def _change(self, group: DatabaseGroup, addresses: GroupAddresses) -> None:
        known = {server.database.address: server for server in group.servers}
        servers = [known.get(address) or self._new_server(address) for address in addresses.servers]
        if (tuple(servers), servers[addresses.primary]) == (group.servers, group.primary):
            group.generation = addresses.generation
            return
        for server in group.replace(servers, addresses.primary, addresses.generation):
            self._close_later(server.close())
        logger.warning(
            "a database group has changed",
            extra=fields(group=group.name, primary=str(group.primary.address), generation=group.generation),
        )
        self._changed(group)

    async def close(self) -> None:
        await asyncio.gather(*(group.close() for group in self._groups.values()), *self._closing)

    def _new_server(self, address: DatabaseAddress) -> GroupServer:
        database = self._database
        return GroupServer(
            Database.unconnected(address, connections=database.connections, timeout_ms=database.timeout_ms)
        )

    def _changed(self, group: DatabaseGroup) -> None:
        for callback in self._on_change:
            callback(group)

    def _close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(closing, name="close a database")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _status(group: DatabaseGroup, server: GroupServer) -> ServerStatus:
    if not server.was_asked:
        return ServerStatus(None)
    if server.is_down:
        return ServerStatus(False, problem=server.error)
    is_primary = server is group.primary
    problem = "semi-synchronous replication has turned itself off" if is_primary and server.has_lost_semi_sync else ""
    return ServerStatus(True, server.takes_writes, None if is_primary else group.lag_ms(server), problem)
