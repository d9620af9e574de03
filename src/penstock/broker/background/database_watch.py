"""What a broker does about the servers of database groups, beside using them.

Every broker warns of what its administrator should know. The controller also writes the heartbeats by which the lag of
replicas is measured, says in the coordination tree which servers answer, and notices that another server has become
the primary. The rules are in `docs/internals/database-groups.md`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping

from penstock.background_loop import run_forever
from penstock.clock import Clock
from penstock.cluster import nodes
from penstock.cluster.coordination.contract import Change, Coordination, Create, Delete, Unsubscribe
from penstock.cluster.decisions.database_groups import PrimaryWatch
from penstock.cluster.metadata import DatabaseGroupInfo
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ConflictError, CoordinationError
from penstock.logs import fields
from penstock.sql.errors import DatabaseError
from penstock.sql.group import DatabaseGroup
from penstock.sql.groups import DatabaseGroups

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_LONG_LAG_MS = 30_000


class DatabaseWatch:
    """Looks at all groups once a second."""

    def __init__(
        self,
        databases: DatabaseGroups,
        metadata: MetadataChanges,
        coordination: Coordination,
        is_controller: Callable[[], bool],
        clock: Clock,
        look_s: float = _LOOK_S,
    ) -> None:
        self._databases = databases
        self._metadata = metadata
        self._coordination = coordination
        self._is_controller = is_controller
        self._clock = clock
        self._look_s = look_s
        self._watches: dict[str, tuple[DatabaseGroupInfo, PrimaryWatch]] = {}
        self._leases: dict[str, bytes] = {}
        """The nodes that this broker has made, and what they say."""
        self._warned: set[tuple[str, str]] = set()
        """What was said, and of which server or group: it is said again when it has been well in between."""
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Unsubscribe = lambda: None

    def start(self) -> None:
        self._unsubscribe = self._coordination.on_session_lost(self._leases.clear)
        work = run_forever("database groups", self._step)
        self._task = asyncio.get_running_loop().create_task(work, name="database groups")

    async def close(self) -> None:
        """Leases go with the session."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _step(self) -> None:
        try:
            await self.look()
        except CoordinationError as error:
            logger.warning("cannot publish the state of database groups, retrying", extra=fields(reason=str(error)))
        await asyncio.sleep(self._look_s)

    async def look(self) -> None:
        """Does what is due."""
        infos = self._metadata.image.databases
        found = {group.name: group for group in self._databases if group.name in infos}
        for group in found.values():
            self._warn(group)
        if not self._is_controller():
            self._watches.clear()
            await self._say({})
            return
        await asyncio.gather(*(self._beat(group) for group in found.values()))
        self._watches = {name: each for name, each in self._watches.items() if name in found}
        for name, group in found.items():
            # What is known must be of the servers that the metadata has.
            if infos[name].generation == group.generation and len(infos[name].servers) == len(group.servers):
                await self._look_for_primary(infos[name], group)
        await self._say(_answering(found.values()))

    async def _beat(self, group: DatabaseGroup) -> None:
        """Writes the heartbeat, by which brokers know how far replicas are behind."""
        if not group.replicas or not group.takes_writes:
            return
        try:
            await group.primary.write_heartbeat(self._clock.now_ms())
        except DatabaseError as error:
            logger.info("could not write a heartbeat", extra=fields(group=group.name, reason=str(error)))

    async def _look_for_primary(self, info: DatabaseGroupInfo, group: DatabaseGroup) -> None:
        """Commits what the administrator has done: another server is the primary."""
        if not all(server.is_known_since_change for server in group.servers):
            return
        before, watch = self._watches.get(info.name, (info, PrimaryWatch()))
        if (before.servers, before.generation) != (info.servers, info.generation):
            watch = PrimaryWatch()
        takes_writes = {
            number: None if server.is_down else server.takes_writes for number, server in enumerate(group.servers)
        }
        watch = watch.seen(info, takes_writes)
        self._watches[info.name] = info, watch
        successor = watch.successor(info, takes_writes)
        if successor is None:
            return
        if await self._metadata.promote_server(info.name, successor, info.generation):
            logger.warning(
                "another server is the primary of a database group",
                extra=fields(group=info.name, primary=str(group.servers[successor].address)),
            )

    def _warn(self, group: DatabaseGroup) -> None:
        primary = group.primary
        is_beating = group.takes_writes and primary.was_asked
        for replica in group.replicas:
            self._warn_if(
                replica.was_asked and not replica.is_down and replica.takes_writes,
                "a server that is not the primary takes writes, which are lost: make it read-only, or the primary"
                " (penstock dbnode promote)",
                group,
                str(replica.address),
            )
            lag_ms = group.lag_ms(replica)
            self._warn_if(
                is_beating and not replica.is_down and lag_ms is not None and lag_ms > _LONG_LAG_MS,
                "a replica is more than 30 seconds behind its primary",
                group,
                str(replica.address),
            )
        self._warn_if(
            not primary.is_down and primary.has_lost_semi_sync,
            "semi-synchronous replication has turned itself off: acknowledged records may be on the primary alone",
            group,
            str(primary.address),
        )

    def _warn_if(self, is_so: bool, text: str, group: DatabaseGroup, server: str) -> None:
        said = (text, server)
        if not is_so:
            self._warned.discard(said)
        elif said not in self._warned:
            self._warned.add(said)
            logger.warning(text, extra=fields(group=group.name, server=server))

    async def _say(self, wanted: Mapping[str, bytes]) -> None:
        """Has the coordination tree say which servers answer."""
        changes: list[Change] = []
        gone = [path for path, value in self._leases.items() if wanted.get(path) != value]
        changes += [Delete(path, 0) for path in gone]
        kept = self._leases.keys() - set(gone)
        changes += [Create(path, value, leased=True) for path, value in wanted.items() if path not in kept]
        if not changes:
            return
        try:
            await self._coordination.commit(*changes)
        except ConflictError:
            # Of a former controller, or of a group that is gone: what is there counts, and is looked at next time.
            self._leases = {path: value for path, value in self._leases.items() if await self._has(path)}
        else:
            self._leases = dict(wanted)

    async def _has(self, path: str) -> bool:
        return await self._coordination.get(path) is not None


def _answering(groups: Iterable[DatabaseGroup]) -> dict[str, bytes]:
    """The nodes of servers that answer."""
    found: dict[str, bytes] = {}
    for group in groups:
        for number, server in enumerate(group.servers):
            if server.was_asked and not server.is_down:
                name = "primary" if server is group.primary else f"replica-{number}"
                value = json.dumps({"server": server.address.server}).encode()
                found[f"{nodes.database_path(group.name)}/{name}"] = value
    return found
