"""Keeps the offset tables of topics up to date, and moves groups whose rows a person has changed.

One loop does both, one table after the other, so that it never has more than one connection. The rules are in
`docs/internals/sql.md`, "Offset tables".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from penstock.background_loop import run_forever
from penstock.clock import Clock
from penstock.cluster.metadata import OFFSETS_TOPIC, MetadataImage, TopicImage
from penstock.errors import ApiError, Code, StorageError
from penstock.groups.coordinator import GroupCoordinator, LedShard
from penstock.groups.offset_changes import OffsetChanges, Place
from penstock.groups.offset_tables.comparison import differences, refusal
from penstock.groups.offsets import Committed
from penstock.ids import TopicId, TopicPartition
from penstock.logs import fields
from penstock.sql.database import Connection
from penstock.sql.errors import Contended, DatabaseError, Duplicate, SchemaChanged, Unreachable
from penstock.sql.groups import DatabaseGroups
from penstock.storage.sql import offset_table
from penstock.storage.sql.coordinator_fence import Fence
from penstock.storage.sql.offset_table import Bounds, HeldOffset, OffsetRow, SettledEdit, can_show
from penstock.storage.sql.table_names import offset_table_of

logger = logging.getLogger(__name__)

_WRITE_S = 0.15
_LOOK_MS = 1000
_ROWS_AT_ONCE = 1000
_TIMEOUT_MS = 5000
_AFTER_FAILURE_MS = 1000

T = TypeVar("T")


class _Failure(NamedTuple):
    """What was last said of a table that cannot be used, and how long it is left alone."""

    text: str
    until_ms: float


class OffsetTables:
    """The offset tables of all topics in the database, as far as this broker coordinates groups that read them."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        changes: OffsetChanges,
        databases: DatabaseGroups,
        image: Callable[[], MetadataImage],
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._changes = changes
        self._databases = databases
        self._database = databases.default.primary.database
        self._image = image
        self._clock = clock
        self._known: dict[str, TopicId] = {}
        """Topics that have a table, and whose table has been compared."""
        self._to_compare: set[str] = set()
        self._performed: dict[str, dict[Place, int]] = {}
        """Edits by topic that are performed, and that the table still shows as edits."""
        self._failures: dict[str, _Failure] = {}
        """By topic."""
        self._look_at_ms = 0.0
        self._is_reachable = True
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        work = run_forever("offset tables", self._step)
        self._loop = asyncio.get_running_loop().create_task(work, name="offset tables")

    async def close(self) -> None:
        """The next broker that loads the shards writes what is missing."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])

    async def _step(self) -> None:
        pause_s = _WRITE_S
        try:
            await self._write()
            if self._clock.monotonic_ms() >= self._look_at_ms:
                await self._look()
                self._look_at_ms = self._clock.monotonic_ms() + _LOOK_MS
            self._is_reachable = True
        except Unreachable as error:
            if self._is_reachable:
                logger.warning(
                    "cannot reach the offset tables; they lag until the database is back",
                    extra=fields(error=str(error)),
                )
            self._is_reachable = False
            pause_s = _AFTER_FAILURE_MS / 1000
        await asyncio.sleep(pause_s)

    async def _write(self) -> None:
        """Writes what has changed; what could not be written has changed still."""
        topics = self._topics()
        if self._changes.take_loaded():
            self._to_compare.update(topics)
        marked = {name: places for name, places in self._changes.take().items() if name in topics}
        self._to_compare.intersection_update(topics)
        self._to_compare |= {name for name in marked if self._known.get(name) != topics[name].id}
        try:
            await self._compare(topics, marked)
            for name in list(marked):
                if name not in self._to_compare and await self._try(
                    name, partial(self._write_topic, topics[name], marked[name])
                ):
                    del marked[name]
        finally:
            for name, places in marked.items():
                self._changes.mark_again(name, places)

    async def _compare(self, topics: Mapping[str, TopicImage], marked: dict[str, set[Place]]) -> None:
        """Marks where tables differ from what the coordinator has."""
        held = self._held(self._to_compare)
        for name in list(self._to_compare):
            found: set[Place] = set()
            if await self._try(name, partial(self._compare_topic, topics[name], held.get(name, {}), found)):
                self._to_compare.discard(name)
                if found:
                    marked.setdefault(name, set()).update(found)

    async def _compare_topic(self, topic: TopicImage, held: Mapping[Place, int], found: set[Place]) -> None:
        table = _table_of(topic)
        try:
            rows = await self._run(lambda connection: offset_table.read(connection, table), is_read_only=True)
        except SchemaChanged:
            self._known.pop(topic.name, None)
            if not held:
                return
            await self._database.run_ddl(
                lambda connection: offset_table.create(connection, table), timeout_ms=_TIMEOUT_MS
            )
            rows = []
        self._known[topic.name] = topic.id
        led = self._coordinator.led_shards()
        found |= differences(rows, held, lambda group_id: self._coordinator.index_of(group_id) in led)

    async def _write_topic(self, topic: TopicImage, places: set[Place]) -> None:
        if self._known.get(topic.name) != topic.id:
            return  # there is no table, and nothing to put into one
        led = self._coordinator.led_shards()
        offsets = [
            HeldOffset(index, group_id, partition, _offset_of(led[index], group_id, topic.name, partition))
            for group_id, partition in sorted(places)
            if (index := self._coordinator.index_of(group_id)) in led and can_show(group_id)
        ]
        for some in _in_parts(offsets, _ROWS_AT_ONCE):
            fence = self._fence(led, {each.shard for each in some})
            await self._run(
                partial(offset_table.write, table=_table_of(topic), offsets=some, fence=fence), is_read_only=False
            )

    async def _look(self) -> None:
        """Looks for rows that a person has changed."""
        topics = self._topics() if self._coordinator.led_shards() else {}
        for name in self._failures.keys() - topics.keys():
            del self._failures[name]
        for name, topic_id in list(self._known.items()):
            topic = topics.get(name)
            if topic is None or topic.id != topic_id:
                del self._known[name]
                self._performed.pop(name, None)
            elif not await self._try(name, partial(self._look_at, topic)):
                # It may be missing, or have been made anew without its rows.
                self._to_compare.add(name)

    async def _look_at(self, topic: TopicImage) -> None:
        edited = await self._run(
            lambda connection: offset_table.edited(connection, _table_of(topic)), is_read_only=True
        )
        performed = self._performed.pop(topic.name, {})
        if not edited:
            return
        bounds, unknown = await self._bounds(topic, {row.partition for row in edited})
        led = self._coordinator.led_shards()
        rows_by_group: dict[str, list[OffsetRow]] = {}
        for row in edited:
            if row.partition in unknown:
                continue  # until its database answers
            if self._coordinator.index_of(row.group_id) in led and can_show(row.group_id):
                rows_by_group.setdefault(row.group_id, []).append(row)
        places = {(row.group_id, row.partition): row.committed for row in edited}
        self._performed[topic.name] = {each: offset for each, offset in performed.items() if places.get(each) == offset}
        settlements: list[SettledEdit] = []
        for group_id, rows in rows_by_group.items():
            index = self._coordinator.index_of(group_id)
            for row, offset in await self._move(topic, led[index], group_id, rows, bounds):
                settlements.append(SettledEdit(index, row, offset))
        fence = self._fence(led, {each.shard for each in settlements})
        await self._run(
            partial(offset_table.settle, table=_table_of(topic), settlements=settlements, fence=fence),
            is_read_only=False,
        )
        for _, row, _ in settlements:
            self._performed[topic.name].pop((row.group_id, row.partition), None)
            # Commits since the edit were not written.
            self._changes.mark(row.group_id, TopicPartition(topic.name, row.partition))

    async def _bounds(self, topic: TopicImage, partitions: Collection[int]) -> tuple[dict[int, Bounds], set[int]]:
        """How far partitions reach, and those of which that cannot be found out now."""
        # What is left of a retired partition is stored, too.
        wanted: dict[str, set[int]] = {}
        for index in partitions:
            if index < len(topic.partitions):
                wanted.setdefault(topic.partitions[index].database, set()).add(index)
        found: dict[int, Bounds] = {}
        unknown: set[int] = set()
        for database, indexes in wanted.items():
            try:
                stored = await self._databases[database].read(
                    lambda connection: offset_table.bounds(connection, topic.name, topic.id)
                )
            except Unreachable:
                unknown |= indexes
            else:
                found |= {index: stored[index] for index in indexes if index in stored}
        return found, unknown

    async def _move(
        self,
        topic: TopicImage,
        shard: LedShard,
        group_id: str,
        rows: Sequence[OffsetRow],
        bounds: Mapping[int, Bounds],
    ) -> list[tuple[OffsetRow, int | None]]:
        """Moves a group to where its rows say; gives the rows that are dealt with, and what each shall say."""
        reasons = {row: refusal(row, bounds.get(row.partition)) for row in rows}
        performed = self._performed[topic.name]
        wanted = [
            row
            for row, reason in reasons.items()
            if reason is None and performed.get((group_id, row.partition)) != row.committed
        ]
        if wanted:
            reasons |= await self._reset(topic.name, group_id, wanted)
        ended: list[tuple[OffsetRow, int | None]] = []
        for row, reason in reasons.items():
            if reason is not None:
                _say_refused(topic.name, row, reason)
                ended.append((row, _offset_of(shard, group_id, topic.name, row.partition)))
            elif performed.get((group_id, row.partition)) == row.committed:
                ended.append((row, row.committed))
        return ended

    async def _reset(self, topic: str, group_id: str, rows: Sequence[OffsetRow]) -> dict[OffsetRow, str | None]:
        """Performs edits of one group; gives why some are refused. What is in neither is tried at the next look."""
        now_ms = self._clock.now_ms()
        row_at = {TopicPartition(topic, row.partition): row for row in rows}
        try:
            refused, codes = await self._coordinator.reset(
                group_id, {at: Committed(row.committed, -1, "", now_ms) for at, row in row_at.items()}
            )
        except ApiError as error:
            logger.warning(
                "could not move a group to the offsets that were set in the database; will retry",
                extra=fields(group=group_id, topic=topic, reason=f"{error.code.name} {error}"),
            )
            return {}
        if refused is not None:
            return dict.fromkeys(rows, refused.name)
        if any(code is not Code.NONE for code in codes.values()):
            others = (Code.NONE, Code.OPERATION_NOT_ATTEMPTED)
            return {row_at[at]: code.name for at, code in codes.items() if code not in others}
        for row in rows:
            self._performed[topic][group_id, row.partition] = row.committed
            logger.warning(
                "moved a group to the offsets that were set in the database",
                extra=fields(group=group_id, topic=topic, partition=row.partition, offset=row.committed),
            )
        return {}

    async def _try(self, topic: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether it was done. A table that cannot be used is left alone for a while, and must not hold up others."""
        failure = self._failures.get(topic)
        if failure is not None and self._clock.monotonic_ms() < failure.until_ms:
            return False
        try:
            await work()
        except Unreachable:
            raise
        except (Contended, Duplicate):
            return False  # another client is writing
        except (DatabaseError, StorageError) as error:
            if failure is None or failure.text != str(error):
                logger.warning("an offset table cannot be used", extra=fields(topic=topic, reason=str(error)))
            self._failures[topic] = _Failure(str(error), self._clock.monotonic_ms() + _AFTER_FAILURE_MS)
            return False
        self._failures.pop(topic, None)
        return True

    async def _run(self, work: Callable[[Connection], T], *, is_read_only: bool) -> T:
        return await self._database.run(work, is_read_only=is_read_only, timeout_ms=_TIMEOUT_MS)

    def _topics(self) -> dict[str, TopicImage]:
        """The topics that have a table, or get one."""
        return {
            name: topic
            for name, topic in self._image().topics.items()
            if topic.is_shared and topic.view_of is None and not topic.is_internal
        }

    def _held(self, topics: Collection[str]) -> dict[str, dict[Place, int]]:
        """All offsets of these topics that are coordinated here."""
        found: dict[str, dict[Place, int]] = {}
        for shard in self._coordinator.led_shards().values() if topics else ():
            for group_id, committed in shard.committed.items():
                if can_show(group_id):
                    for at, each in committed.items():
                        if at.topic in topics:
                            found.setdefault(at.topic, {})[group_id, at.partition] = each.offset
        return found

    def _fence(self, led: Mapping[int, LedShard], shards: Collection[int]) -> Fence:
        return Fence(self._image().topics[OFFSETS_TOPIC].id, {index: led[index].epoch for index in shards})


def _table_of(topic: TopicImage) -> str:
    return offset_table_of(TopicPartition(topic.name, 0))


def _offset_of(shard: LedShard, group_id: str, topic: str, partition: int) -> int | None:
    committed = shard.committed.get(group_id, {}).get(TopicPartition(topic, partition))
    return None if committed is None else committed.offset


def _say_refused(topic: str, row: OffsetRow, reason: str) -> None:
    logger.error(
        "an offset that was set in the database is refused: the row is set back",
        extra=fields(group=row.group_id, topic=topic, partition=row.partition, offset=row.committed, reason=reason),
    )


def _in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
