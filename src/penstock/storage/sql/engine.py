"""All logs of a broker that are in a database: opening, making, moving and dropping them.

The engine is shared: other brokers have logs in the same tables. A log that is closed here stays where it is; only
`delete` and `discard` drop tables.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from penstock.clock import Clock, SystemClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import TopicConfig
from penstock.errors import StorageError
from penstock.ids import TopicId, TopicPartition, companion_of, is_companion, main_of
from penstock.logs import fields
from penstock.sql.database import Connection
from penstock.sql.errors import DatabaseError, Duplicate, SchemaChanged
from penstock.sql.groups import DEFAULT_GROUP, DatabaseGroups
from penstock.storage.companions import companion_config
from penstock.storage.contract import Engine, Log, StrayLog
from penstock.storage.sql import offset_table, schema, stored_state
from penstock.storage.sql.added_rows import AddedRowsWatch
from penstock.storage.sql.environment import LostRecords, SqlEnvironment, WriteBuffer, storage_error
from penstock.storage.sql.loading import StoredLog, load_copy
from penstock.storage.sql.log import SqlLog
from penstock.storage.sql.log_moves import LogCopy, LogMove
from penstock.storage.sql.partition_table import BatchTable, PartitionTable, RecordTable
from penstock.storage.sql.read_ahead import HeldReads
from penstock.storage.sql.stored_state import QueueRow, queue_id_of
from penstock.storage.sql.table_names import offset_table_of, table_of
from penstock.storage.sql.table_ranges import add_ranges
from penstock.storage.sql.tail_cache import CacheRoom

logger = logging.getLogger(__name__)

_TOGETHER = 8
"""So many logs are opened or closed at the same time."""
_BUFFER_BYTES = 64 << 20
_CACHE_BYTES = 64 << 20
_RETRY_MS = 10_000
_LOOK_MS = 1000
_RANGE_BYTES = 256 << 20

T = TypeVar("T")


class SqlEngine(Engine):
    """Logs in tables, over all database groups. The caller owns the groups and closes them after the engine."""

    is_shared = True

    def __init__(
        self,
        groups: DatabaseGroups,
        settings: LogSettings,
        limits: Limits,
        clock: Clock,
        cluster_id: str,
        *,
        buffer_bytes: int = _BUFFER_BYTES,
        cache_bytes: int = _CACHE_BYTES,
        retry_ms: int = _RETRY_MS,
        look_ms: int = _LOOK_MS,
        range_bytes: int = _RANGE_BYTES,
    ) -> None:
        self._groups = groups
        self._new_environment = partial(
            SqlEnvironment,
            clock=clock,
            timer=SystemClock(),
            max_producers=limits.producers_per_partition,
            producer_expiry_ms=settings.producer_expiry_ms,
            compaction_memory_bytes=settings.compaction_memory_bytes,
            retry_ms=retry_ms,
            range_bytes=range_bytes,
            cache_room=CacheRoom(cache_bytes),
            held_reads=HeldReads(SystemClock()),
            preparation=(preparation := ThreadPoolExecutor(1, "prepare rows")),
            buffer=(buffer := WriteBuffer(buffer_bytes)),
            lost_records=(lost_records := LostRecords()),
        )
        self._buffer = buffer
        self._lost_records = lost_records
        self._preparation = preparation
        self._known_ends: dict[int, int] = {}
        """Of logs that were open here, by queue id: a leader that takes one over later must not find less."""
        self._environments: dict[str, SqlEnvironment] = {}
        """By group, of its present generation."""
        self._prepared: set[SqlEnvironment] = set()
        """Those whose own tables are there, and belong to this cluster."""
        self._preparing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._cluster_id = cluster_id
        self._logs: dict[TopicPartition, SqlLog] = {}
        self._left: dict[SqlLog, int] = {}
        """Logs that are in another group now, and where they ended; what is stored in the former group goes when they
        are released.
        """
        self._dropping: set[asyncio.Task[None]] = set()
        self._added_rows = AddedRowsWatch(self._logs.values, look_ms)

    @property
    def logs(self) -> Mapping[TopicPartition, SqlLog]:
        return MappingProxyType(self._logs)

    @property
    def unwritten_bytes(self) -> int:
        return self._buffer.bytes

    @property
    def lost_records(self) -> int:
        return self._lost_records.count

    def takes_writes(self, database: str) -> bool:
        return database not in self._groups.without_writes()

    async def prepare(self) -> None:
        """Makes the engine's own tables in the default group, and checks that they are this cluster's."""
        await self._prepared_environment(DEFAULT_GROUP)

    async def open(self, wanted: Mapping[TopicPartition, tuple[TopicId, TopicConfig]]) -> None:
        await self._prepared_environment(DEFAULT_GROUP)
        turns = asyncio.Semaphore(_TOGETHER)

        async def bring_back(at: TopicPartition, topic_id: TopicId, config: TopicConfig) -> None:
            async with turns:
                try:
                    await self.create(at, topic_id, config)
                except StorageError as error:
                    logger.critical("log is offline", extra=fields(log=str(at), reason=str(error)))

        await asyncio.gather(*(bring_back(at, *each) for at, each in wanted.items()))
        self._added_rows.start()

    def _environment(self, database: str) -> SqlEnvironment:
        """Of a group as it is now; StorageError if there is no such group."""
        try:
            group = self._groups[database]
        except DatabaseError as error:
            raise storage_error(error) from error
        env = self._environments.get(database)
        if env is None or (env.group, env.generation) != (group, group.generation):
            env = self._environments[database] = self._new_environment(
                group=group,
                generation=group.generation,
                reads=asyncio.Semaphore(max(1, group.connections // 2)),
            )
        return env

    async def _prepared_environment(self, database: str) -> SqlEnvironment:
        """Of a group whose own tables are there."""
        env = self._environment(database)
        if env not in self._prepared:
            async with self._preparing[database]:
                if env not in self._prepared:
                    if not await env.read(schema.is_current):
                        await env.define(schema.migrate)
                    await env.read(schema.check_own_tables)
                    await self._check_cluster(env)
                    self._prepared = {each for each in self._prepared if each in self._environments.values()} | {env}
        return env

    async def _check_cluster(self, env: SqlEnvironment) -> None:
        """Two clusters that use the same tables would take each other's logs for their own."""
        owner = await env.read(schema.cluster_of)
        if owner is None:
            try:
                await _change(env, lambda connection: schema.set_cluster(connection, self._cluster_id))
                return
            except Duplicate:
                owner = await env.read(schema.cluster_of)
        if owner != self._cluster_id:
            raise StorageError(
                f"{env.group.primary.address} belongs to the cluster {owner}, and this broker to {self._cluster_id}:"
                " give this cluster a database of its own; nothing was changed"
            )

    async def create(
        self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, database: str = DEFAULT_GROUP
    ) -> Log:
        """The log of a partition, with what the database has of it: another broker may have led it until now.

        A companion is in the group of its log, whatever `database` says.
        """
        if at in self._logs:
            await self.release(at)
        main = self._logs.get(main_of(at)) if is_companion(at) else None
        env = await self._prepared_environment(database) if main is None else main.env
        log = self._logs[at] = await self._open_log(at, topic_id, config, env)
        if not is_companion(at):
            log.find_companion = partial(self._find_companion, log)
            companion = await self._find_companion(log)
            if companion is not None:
                log.sync_after(companion)
        return log

    async def open_read_only(self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, database: str) -> Log:
        """From the server of the group that has most of it."""
        env = self._environment(database)
        beside = companion_of(at)

        def load(connection: Connection) -> list[tuple[SqlLog, StoredLog]]:
            found = []
            # Both halves of a delayed batch are seen, or none.
            connection.hold_snapshot()
            for each, each_config in ((beside, companion_config(config)), (at, config)):
                row = stored_state.find_row(connection, queue_id_of(each, topic_id))
                if row is not None:
                    table = _table(each, row.table, env)
                    log = SqlLog(each, topic_id, each_config, table, env)
                    found.append((log, load_copy(connection, row, table)))
            return found

        loaded = await env.read_anywhere(load, load)
        if not any(log.topic_partition == at for log, _ in loaded):
            raise StorageError(f'no server of the database group "{database}" that answers has {at}')
        for log, state in loaded:
            log.adopt_copy(state)
            self._logs[log.topic_partition] = log
        if beside in self._logs:
            self._logs[at].sync_after(self._logs[beside])
        return self._logs[at]

    async def _find_companion(self, main: SqlLog) -> SqlLog | None:
        """The companion of a log, if there is one."""
        at = companion_of(main.topic_partition)
        if at in self._logs:
            if (self._logs[at].topic_id, self._logs[at].env) == (main.topic_id, main.env):
                return self._logs[at]
            await self.release(at)
        queue_id = queue_id_of(at, main.topic_id)
        row = await main.env.read(lambda connection: stored_state.find_row(connection, queue_id))
        if row is None:
            return None
        self._logs[at] = await self._open_log(at, main.topic_id, companion_config(main.config), main.env)
        return self._logs[at]

    async def _open_log(
        self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, env: SqlEnvironment
    ) -> SqlLog:
        row, is_new = await self._row(at, topic_id, env)
        table = _table(at, row.table, env)
        if is_new:
            try:
                await env.define(partial(_create_empty, table, config, row.id))
            except StorageError:
                await env.change(lambda connection: stored_state.delete_row_of_empty(connection, row.id))
                raise
        elif row.next_id == 1:
            # Nothing was appended yet: the client that made the row may have stopped before it made the table.
            await env.define(partial(_create, table, config))
        else:
            await env.read(lambda connection: schema.check_table(connection, row.table, table.columns(env.dialect)))
        log = SqlLog(at, topic_id, config, table, env)
        await log.load(row)
        if not is_companion(at):
            log.known_end.learn(self._known_ends.get(row.id, 0))
            log.known_end.learn(await self._committed_offset(at, env))
        return log

    async def _committed_offset(self, at: TopicPartition, env: SqlEnvironment) -> int:
        """The highest offset that a group has committed; 0 if none has. The offsets are in the default database group,
        so logs in that group are not compared with them.
        """
        if env.group.name == DEFAULT_GROUP:
            return 0
        table = offset_table_of(at)
        try:
            return await self._environment(DEFAULT_GROUP).read(
                lambda connection: offset_table.highest(connection, table, at.partition)
            )
        except StorageError as error:
            if isinstance(error.__cause__, SchemaChanged):
                return 0  # there is no such table yet
            if env.generation == 0:
                # No replica was promoted: logs in other database groups do not need the default database here.
                logger.warning(
                    "could not compare a log with committed offsets", extra=fields(log=str(at), error=str(error))
                )
                return 0
            raise

    async def _row(self, at: TopicPartition, topic_id: TopicId, env: SqlEnvironment) -> tuple[QueueRow, bool]:
        """The row of a log in `queue`, and whether it was made now."""
        queue_id = queue_id_of(at, topic_id)
        row = await env.read(lambda connection: stored_state.find_row(connection, queue_id))
        if row is not None:
            return row, False
        for table in (table_of(at), table_of(at, topic_id)):
            try:
                return await _change(env, partial(_insert, queue_id, table, at, topic_id)), True
            except Duplicate:
                # Another broker was quicker, or the table is that of an earlier topic of this name.
                row = await env.read(lambda connection: stored_state.find_row(connection, queue_id))
                if row is not None:
                    return row, False
        raise StorageError(f"{at} has no table: its names are in use by other topics")

    async def delete(self, *logs: TopicPartition) -> None:
        for at in logs:
            log = self._logs.pop(at)
            await log.close()
            self._known_ends.pop(log.row.id, None)
            beside = None if is_companion(at) else companion_of(at)
            queue_ids = [queue_id_of(each, log.topic_id) for each in (at, beside) if each is not None]
            try:
                for queue_id in queue_ids:
                    await _drop(log.env, queue_id)
                await self._drop_offsets(at, log.topic_id)
            except (StorageError, DatabaseError) as error:
                logger.error("could not delete a log", extra=fields(log=str(at), error=str(error)))

    async def release(self, *logs: TopicPartition) -> None:
        await self._close(logs)
        for at in logs:
            log = self._logs.pop(at, None)
            copied_end = None if log is None else self._left.pop(log, None)
            if log is not None and copied_end is not None:
                task = asyncio.get_running_loop().create_task(self._drop_source(log, copied_end), name=f"drop {at}")
                self._dropping.add(task)
                task.add_done_callback(self._dropping.discard)

    async def move(self, at: TopicPartition, database: str, commit: Callable[[], Awaitable[bool]]) -> bool:
        main = self._logs[at]
        if main.companion is None:
            companion = await self._find_companion(main)
            if companion is not None:
                main.sync_after(companion)
        logs = [main] if main.companion is None else [main, main.companion]
        env = await self._prepared_environment(database)
        move = LogMove(main)
        try:
            for log in logs:
                move.copies.append(await self._new_copy(log, env))
            is_moved = await move.run(commit)
        finally:
            if not move.may_count:
                await asyncio.shield(self._drop_copies(move.copies))
        if is_moved:
            self._left.update({copy.log: copy.source_end for copy in move.copies})
        return is_moved

    async def _new_copy(self, log: SqlLog, env: SqlEnvironment) -> LogCopy:
        at = log.topic_partition
        await _drop(env, queue_id_of(at, log.topic_id))
        row, _ = await self._row(at, log.topic_id, env)
        table = _table(at, row.table, env)
        await env.define(partial(_create_empty, table, log.config, row.id))
        await env.define(partial(add_ranges, row.table, list(log.ranges.plan().ends())))
        return LogCopy(log, env, row, table)

    async def _drop_copies(self, copies: Sequence[LogCopy]) -> None:
        for copy in copies:
            try:
                await _drop(copy.env, copy.queue_id)
            except StorageError as error:
                # The next attempt does it, or the removal of stray logs.
                logger.warning(
                    "could not drop the copy of a log",
                    extra=fields(log=str(copy.log.topic_partition), group=copy.env.group.name, error=str(error)),
                )

    async def _drop_source(self, log: SqlLog, copied_end: int) -> None:
        """What is left of a log in the group that it was in."""
        queue_id = queue_id_of(log.topic_partition, log.topic_id)
        try:
            row = await log.env.read(lambda connection: stored_state.find_row(connection, queue_id))
            if row is not None and row.end_offset > copied_end:
                logger.critical(
                    "records were inserted into a table while it was being moved: the table is kept",
                    extra=fields(table=row.table, group=log.env.group.name, first=copied_end, end=row.end_offset),
                )
                await log.env.change(lambda connection: stored_state.delete_row(connection, queue_id))
            else:
                await _drop(log.env, queue_id)
        except StorageError as error:
            logger.error(
                "could not drop a log that was moved",
                extra=fields(log=str(log.topic_partition), group=log.env.group.name, error=str(error)),
            )

    async def _drop_offsets(self, at: TopicPartition, topic_id: TopicId) -> None:
        """Drops the offset table of a topic of which nothing else is left, in any group."""
        try:
            for group in self._groups:
                env = await self._prepared_environment(group.name)
                if await env.read(lambda connection: schema.has_logs(connection, topic_id)):
                    return
            default = self._environment(DEFAULT_GROUP)
            await default.define(lambda connection: schema.drop_table(connection, offset_table_of(at)))
        except StorageError as error:
            logger.warning("could not drop an offset table", extra=fields(topic=at.topic, error=str(error)))

    async def find_strays(self) -> Sequence[StrayLog]:
        """All logs in the databases that are not open here; those of other brokers are among them. What is in a group
        that does not answer is not found.
        """
        groups = list(self._groups)
        found: list[StrayLog] = []
        errors: list[StorageError] = []
        for group in groups:
            try:
                env = await self._prepared_environment(group.name)
                found += await env.read(partial(_stored_logs, database=group.name))
            except StorageError as error:
                errors.append(error)
                logger.warning("could not list stored logs", extra=fields(group=group.name, error=str(error)))
        if len(errors) == len(groups):
            raise OSError(str(errors[0]))
        opened = {(log.topic_id, at, log.env.group.name) for at, log in self._logs.items()}
        return [stray for stray in found if stray[1:] not in opened]

    async def discard(self, stray: StrayLog) -> None:
        try:
            env = self._environment(stray.database)
            await _drop(env, queue_id_of(stray.topic_partition, stray.topic_id))
            await self._drop_offsets(stray.topic_partition, stray.topic_id)
        except (StorageError, DatabaseError) as error:
            raise OSError(str(error)) from error

    async def close(self) -> None:
        await self._added_rows.close()
        await self._close(list(self._logs))
        while self._dropping:
            await asyncio.wait(self._dropping)
        self._preparation.shutdown()
        self._logs.clear()

    async def _close(self, logs: Sequence[TopicPartition]) -> None:
        for some in _in_parts(logs, _TOGETHER):
            await asyncio.gather(*(self._logs[at].close() for at in some if at in self._logs))
        for at in logs:
            if at in self._logs and not is_companion(at):
                log = self._logs[at]
                self._known_ends[log.row.id] = max(self._known_ends.get(log.row.id, 0), log.committed_end)


async def _change(env: SqlEnvironment, work: Callable[[Connection], T]) -> T:
    """Like the environment's, but for a row that is there already."""
    try:
        return await env.attempt(lambda: env.run(work))
    except Duplicate:
        raise
    except DatabaseError as error:
        raise storage_error(error) from error


async def _drop(env: SqlEnvironment, queue_id: int) -> None:
    row = await env.read(lambda connection: stored_state.find_row(connection, queue_id))
    if row is not None:
        # The table first: what is left by a crash is found again by its row.
        await env.define(lambda connection: schema.drop_table(connection, row.table))
        await env.change(lambda connection: stored_state.delete_row(connection, queue_id))


def _table(at: TopicPartition, name: str, env: SqlEnvironment) -> PartitionTable:
    kind = BatchTable if is_companion(at) else RecordTable
    return kind(name, env.dialect)


def _stored_logs(connection: Connection, database: str) -> list[StrayLog]:
    rows = connection.execute("SELECT table_name, topic_id, topic, partition_index FROM queue ORDER BY table_name")
    return [
        StrayLog(table, uuid.UUID(topic_id), TopicPartition(topic, partition), database)
        for table, topic_id, topic, partition in rows
    ]


def _insert(queue_id: int, table: str, at: TopicPartition, topic_id: TopicId, connection: Connection) -> QueueRow:
    return stored_state.insert_row(connection, queue_id, table, at, topic_id)


def _create(table: PartitionTable, config: TopicConfig, connection: Connection) -> None:
    # Compaction takes single rows, and rarely leaves whole ranges to be dropped.
    has_ranges = connection.dialect.has_ranges and not table.is_compacted(config)
    columns = table.columns(connection.dialect)
    schema.create_table(connection, table.name, columns, table.indexes, has_ranges=has_ranges)


def _create_empty(table: PartitionTable, config: TopicConfig, queue_id: int, connection: Connection) -> None:
    """For a row that is new: what the table has in it is not the log's, unless others have appended by that row."""
    _create(table, config, connection)
    if not schema.is_empty(connection, table.name):
        row = stored_state.find_row(connection, queue_id)
        if row is None or row.next_id == 1:
            raise StorageError(
                f'the table "{table.name}" has rows, but no log that they belong to; nothing was changed'
            )


def _in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
