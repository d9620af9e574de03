"""A `QueueStore` on a database: MySQL, MariaDB, PostgreSQL or SQLite; `docs/internals/direct.md`."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from penstock.brokerless.address import QueueAddress
from penstock.brokerless.sql import appends, group_tables, reads
from penstock.brokerless.sql.appends import LeadersTurnError, PartitionRef, ProducerMemory, QueueMissingError
from penstock.brokerless.sql.custodian import Custodian
from penstock.brokerless.sql.group_tables import DIRECT, OffsetTableMissingError
from penstock.brokerless.sql.link import Link, LinkThread
from penstock.brokerless.sql.message_appends import UnpreparedError
from penstock.brokerless.sql.redis_offsets import RedisOffsets
from penstock.brokerless.sql.topics import SqlTopics
from penstock.brokerless.sql.waiting_messages import waiting_in
from penstock.brokerless.store import (
    FencedClaimError,
    Granted,
    GroupClaims,
    GroupMember,
    GroupOffsets,
    IdFence,
    ReadPage,
    SendBatch,
    StoreAwayError,
    StoreRefusedError,
)
from penstock.clock import Clock, SystemClock
from penstock.cluster.metadata import DEFAULT_DATABASE, TopicImage
from penstock.config.broker import LogSettings
from penstock.config.database_address import DatabaseAddress
from penstock.errors import ConfigError
from penstock.ids import TopicPartition
from penstock.sdk.errors import InvalidInputError, TopicError
from penstock.sdk.timers import TimerQuery, WaitingMessage, select_timers
from penstock.sql.database import Connection
from penstock.sql.errors import Contended, Duplicate, SchemaChanged
from penstock.sql.migrations import migrate
from penstock.storage.sql import stored_state
from penstock.storage.sql.inbox_table import INBOX
from penstock.storage.sql.stored_state import QueueRow, queue_id_of

T = TypeVar("T")

PARTITIONS_OPTION = "partitions"
"""Of the address: how many partitions topics get that are created without a number."""
CONNECTIONS = 8
TIMEOUT_MS = 10_000
_TRIES = 5
"""How often a transaction is tried that was certainly rolled back, because others held what it needed."""
_PAUSE_S = 0.02
_TURNS = 20
"""How many turns of a leader an append waits for, before it is given back to its producer to try again."""
_LONGEST_TURN_S = 0.25
"""After so long it is looked whether it is still the leader's turn."""
_FIRST_LOOK_S, _LAST_LOOK_S = 0.02, 0.25
_STUCK_S = 0.05


class SqlStore:
    """Topics, groups and delayed messages in a database."""

    incarnation = ""

    def __init__(
        self,
        address: str,
        *,
        connections: int = CONNECTIONS,
        timeout_ms: int = TIMEOUT_MS,
        key_file: str | Path | None = None,
        offsets: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Connects when it is first used. Raises `InvalidInputError` for an address that cannot be read."""
        given = QueueAddress.parse(address)
        try:
            self._address = DatabaseAddress.parse(given.without_option(PARTITIONS_OPTION))
            self._thread = LinkThread(
                self._address,
                partitions=given.number(PARTITIONS_OPTION, 1),
                connections=connections,
                timeout_ms=timeout_ms,
                key_file=None if key_file is None else Path(key_file),
                name="penstock-direct",
            )
        except ConfigError as error:
            raise InvalidInputError(str(error)) from error
        self._clock = clock or SystemClock()
        self._topics = SqlTopics(self._thread)
        self._memory = ProducerMemory()
        self._lock = threading.Lock()
        self._refs: dict[TopicPartition, PartitionRef] = {}
        self._readers: defaultdict[TopicPartition, reads.Reader] = defaultdict(reads.Reader)
        self._stuck: dict[TopicPartition, int] = {}
        """Positions at which there is something that a reader may not see yet."""
        self._appended = threading.Condition()
        self._appends = 0
        self._expected: dict[str, dict[TopicPartition, set[int | None]]] = {}
        """What the offset tables say of claims of this process, by group."""
        self._group_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._with_inbox: set[str] = set()
        self._redis = None if offsets is None else self._opened_redis(offsets)
        self._custodian: Custodian | None = None
        self._thread.on_open(self._prepare)
        self._thread.on_close(self._stop_custodian)

    @property
    def address(self) -> str:
        return str(self._address)

    @property
    def topics(self) -> SqlTopics:
        return self._topics

    @property
    def thread(self) -> LinkThread:
        """What is open."""
        return self._thread

    def settings(self, topic: str) -> Mapping[str, str]:
        return self._topics.settings(topic)

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()
        self._thread.close()

    def _opened_redis(self, offsets: str) -> RedisOffsets:
        if not offsets.startswith(("redis://", "rediss://")):
            self._thread.close()
            raise InvalidInputError("offsets is the address of a Redis, redis://HOST:PORT/DATABASE, or None")
        return RedisOffsets(offsets, self.address, self._commit_to_database)

    async def _prepare(self, link: Link) -> None:
        for component in (DIRECT, INBOX):
            await migrate(link.groups.default.primary.database, component)
        self._custodian = Custodian(link, self._clock, LogSettings())
        self._custodian.start()

    async def _stop_custodian(self) -> None:
        if self._custodian is not None:
            await self._custodian.close()

    # Messages

    def append(self, batch: SendBatch) -> Sequence[int | None]:
        return self._append([batch])[0]

    def is_writable(self, topic_partition: TopicPartition) -> bool:
        try:
            link = self._thread.link
            topic = link.image.topics.get(topic_partition.topic)
            if topic is None or topic_partition.partition >= len(topic.partitions):
                return True
            database = topic.partitions[topic_partition.partition].database
            return link.has_database(database) and database not in link.groups.without_writes()
        except StoreAwayError:
            return False

    def read(self, topic_partition: TopicPartition, offset: int, max_count: int) -> ReadPage:
        reader = self._readers[topic_partition]
        page = self._of_partition(
            topic_partition, lambda ref: self._read(ref, lambda cn: reader.read(cn, ref, offset, max_count))
        )
        if page.next_offset <= offset:
            self._stuck[topic_partition] = offset
        else:
            self._stuck.pop(topic_partition, None)
        return page

    def bounds(self, topic_partition: TopicPartition) -> tuple[int, int]:
        found = self._of_partition(
            topic_partition, lambda ref: self._read(ref, lambda connection: reads.bounds(connection, ref))
        )
        return found.start_offset, found.end_offset

    def wait(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        pause_s = _FIRST_LOOK_S
        is_first = True
        while True:
            appends_seen = self._appends
            stuck = {tp for tp, offset in positions.items() if is_first and self._stuck.get(tp) == offset}
            if self._has_more({tp: offset for tp, offset in positions.items() if tp not in stuck}):
                return
            is_first = False
            remaining_s = until_s - time.monotonic()
            if remaining_s <= 0:
                return
            with self._appended:
                self._appended.wait_for(
                    lambda seen=appends_seen: self._appends != seen,  # type: ignore[misc]
                    min(pause_s if not stuck else _STUCK_S, remaining_s),
                )
            pause_s = min(pause_s * 1.5, _LAST_LOOK_S)

    def _has_more(self, positions: Mapping[TopicPartition, int]) -> bool:
        refs: defaultdict[str, list[PartitionRef]] = defaultdict(list)
        for tp in positions:
            ref = self._ref(tp)
            refs[ref.database].append(ref)
        for database, some in refs.items():
            ends = self._thread.read(database, lambda connection, some=some: reads.ends(connection, some))  # type: ignore[misc]
            if any(ends.get(ref.table, 0) > positions[ref.topic_partition] for ref in some):
                return True
            if len(ends) < len(some):
                self._forget([ref.topic_partition for ref in some])
        return False

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        topic = self._topics.image_of(query.topic)
        numbers = range(len(topic.partitions)) if query.partition is None else [query.partition]
        found: list[WaitingMessage] = []
        for number in numbers:
            tp = self._ref(TopicPartition(query.topic, number)).topic_partition
            found += self._thread.call(waiting_in(self._thread.link, tp, topic, query))
        return select_timers(sorted(found, key=lambda each: each.due_ms), query)

    # Groups

    def heartbeat(self, group: str, member: GroupMember, session_ms: int) -> GroupClaims:
        group_tables.check_name("group", group)
        with self._group_locks[group]:
            state = self._change(lambda connection: group_tables.heartbeat(connection, group, member, session_ms))
            return self._without_edited(group, member.name, state)

    def _without_edited(self, group: str, member: str, state: GroupClaims) -> GroupClaims:
        """Gives up claims whose committed offset was set from outside: they are claimed again, from there."""
        expected = self._expected.get(group, {})
        own = {tp: claim.epoch for tp, claim in state.claims.items() if claim.member == member and tp in expected}
        if not own:
            return state
        stored = self._with_offset_tables(own, lambda cn: group_tables.committed(cn, group, own), is_read=True)
        edited = {tp: epoch for tp, epoch in own.items() if stored.get(tp) not in expected[tp]}
        if not edited:
            return state
        self._change(lambda connection: group_tables.release(connection, group, member, edited))
        for tp in edited:
            expected.pop(tp, None)
        return GroupClaims(state.members, {tp: claim for tp, claim in state.claims.items() if tp not in edited})

    def claim(self, group: str, member: str, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, Granted]:
        with self._group_locks[group]:
            granted = self._with_offset_tables(
                wanted, lambda connection: group_tables.claim(connection, group, member, wanted)
            )
            expected = self._expected.setdefault(group, {})
            expected.update({tp: {each.committed} for tp, each in granted.items()})
        return granted if self._redis is None else self._redis.claimed(group, granted)

    def release(self, group: str, member: str, epochs: Mapping[TopicPartition, int]) -> None:
        self._flush(group)
        with self._group_locks[group]:
            self._change(lambda connection: group_tables.release(connection, group, member, epochs))
            for tp in epochs:
                self._expected.get(group, {}).pop(tp, None)

    def leave(self, group: str, member: str) -> None:
        self._flush(group)
        self._change(lambda connection: group_tables.leave(connection, group, member))

    def committed(self, group: str, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._flush(group)
        return self._with_offset_tables(asked, lambda cn: group_tables.committed(cn, group, asked), is_read=True)

    def commit(self, offsets: GroupOffsets) -> None:
        if self._redis is None:
            self._commit_to_database(offsets)
        elif not self._redis.commit(offsets):
            with self._redis.flushing:
                self._redis.forget(offsets, is_superseded=True)
                self._commit_to_database(offsets)

    def _flush(self, group: str) -> None:
        """What waits in Redis goes to the database."""
        if self._redis is not None:
            self._redis.flush(group)

    def _commit_to_database(self, offsets: GroupOffsets) -> None:
        with self._group_locks[offsets.group], self._committing(offsets) as expected:
            self._with_offset_tables(
                offsets.positions, lambda connection: group_tables.commit(connection, offsets, expected)
            )

    def _committing(self, offsets: GroupOffsets) -> _Committing:
        return _Committing(self._expected.setdefault(offsets.group, {}), offsets)

    def commit_initial(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        self._with_offset_tables(positions, lambda cn: group_tables.commit_initial(cn, group, positions))

    # Transactions

    def fence(self, transactional_id: str) -> IdFence:
        group_tables.check_name("transactional id", transactional_id)
        return self._change(lambda connection: group_tables.fence(connection, transactional_id))

    def commit_transaction(
        self, batches: Sequence[SendBatch], offsets: GroupOffsets | None, fence: IdFence | None
    ) -> Sequence[Sequence[int | None]]:
        if offsets is None:
            return self._append(batches, lambda cn: None if fence is None else group_tables.check_fence(cn, fence))
        self._flush(offsets.group)
        with self._group_locks[offsets.group], self._committing(offsets) as expected:

            def also(connection: Connection) -> None:
                if fence is not None:
                    group_tables.check_fence(connection, fence)
                group_tables.commit(connection, offsets, expected)

            self._make_offset_tables(offsets.positions)
            return self._append(batches, also, database=DEFAULT_DATABASE)

    # Transactions of handlers

    def create_topic(self, topic: str, partitions: int, settings: Mapping[str, str] | None) -> bool:
        """Make a topic and its tables; False if it was there. Raises `InvalidInputError` and `TopicError`."""
        try:
            is_new = self._topics.create(topic, partitions, config=settings)
            self.prepare_topic(topic)
        except StoreAwayError as error:
            raise TopicError(f"topic {topic} could not be created: {error}") from error
        return is_new

    def prepare_topic(self, topic: str) -> None:
        """Make a topic and its tables, if they are missing."""
        if self._topics.shape(topic) is None:
            self._topics.create(topic)
        for number in range(self._topics.partitions(topic)):
            self._ref(TopicPartition(topic, number))

    def prepared_refs(self, topic: str) -> Mapping[int, PartitionRef | None]:
        """The partitions of a topic, without asking the database. Raises `UnpreparedError`."""
        image = self._thread.link.image.topics.get(topic)
        if image is None:
            raise UnpreparedError(topic)
        found: dict[int, PartitionRef | None] = {}
        for partition in image.partitions:
            tp = TopicPartition(topic, partition.index)
            ref = self._refs.get(tp)
            if ref is None or (ref.queue_id, ref.database) != (queue_id_of(tp, image.id), partition.database):
                raise UnpreparedError(topic)
            found[partition.index] = ref if ref.database == DEFAULT_DATABASE else None
        return found

    # Inside

    def _append(
        self,
        batches: Sequence[SendBatch],
        also: Callable[[Connection], None] | None = None,
        database: str | None = None,
    ) -> Sequence[Sequence[int | None]]:
        """Append all, and do something else first in the same transaction. `database`: where that has to be."""
        is_known = False
        until_s = self._until_s()
        for _ in range(_TURNS):
            refs = {batch.topic_partition: self._ref(batch.topic_partition) for batch in batches}
            where = _one_database(refs.values(), database)
            now_ms = self._clock.now_ms()
            prepared = [
                appends.prepared(refs[batch.topic_partition], batch, now_ms, number)
                for number, batch in enumerate(batches)
            ]
            if any(each.delayed for each in prepared):
                self._ensure_inbox(where)

            def work(connection: Connection, prepared: list[appends.PreparedBatch] = prepared) -> appends.Appended:
                if also is not None:
                    also(connection)
                return appends.append(connection, prepared, self._memory)

            try:
                done = self._thread.change(where, work)
            except LeadersTurnError as error:
                time.sleep(min(error.remaining_ms / 1000, _LONGEST_TURN_S))
            except QueueMissingError:
                self._forget(refs)
                if is_known:
                    raise StoreAwayError(
                        f"a partition is on its way to another database: {', '.join(map(str, refs))}"
                    ) from None
                is_known = True
                self._topics.refresh()
            except StoreAwayError as error:
                if not isinstance(error.__cause__, Contended) or time.monotonic() > until_s:
                    # It may have been appended: the next attempt has to look.
                    for batch in batches:
                        self._memory.forget(refs[batch.topic_partition].queue_id, batch.sequence.producer_id)
                    raise
                time.sleep(_PAUSE_S)
            else:
                self._memory.keep(done.producers)
                self.notify()
                return done.offsets
        raise StoreAwayError("other clients append to the same partitions, or move them; nothing was stored")

    def notify(self) -> None:
        """This process has appended something: readers that wait for messages look at once."""
        with self._appended:
            self._appends += 1
            self._appended.notify_all()

    def _of_partition(self, tp: TopicPartition, work: Callable[[PartitionRef], T]) -> T:
        """Once more with fresh metadata, if the partition is not where it was."""
        try:
            return work(self._ref(tp))
        except QueueMissingError:
            self._forget([tp])
            self._topics.refresh()
        try:
            return work(self._ref(tp))
        except QueueMissingError:
            raise StoreAwayError(f"{tp} is on its way to another database") from None

    def _read(self, ref: PartitionRef, work: Callable[[Connection], T]) -> T:
        return self._thread.read(ref.database, work)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            for tp in partitions:
                self._refs.pop(tp, None)

    def _ref(self, tp: TopicPartition) -> PartitionRef:
        """Raises `TopicError`."""
        topic = self._topics.image_of(tp.topic)
        if not 0 <= tp.partition < len(topic.partitions):
            self._topics.refresh()
            topic = self._topics.image_of(tp.topic)
            if not 0 <= tp.partition < len(topic.partitions):
                raise TopicError(f"topic {tp.topic} has no partition {tp.partition}: it has {len(topic.partitions)}")
        database = topic.partitions[tp.partition].database
        queue_id = queue_id_of(tp, topic.id)
        ref = self._refs.get(tp)
        if ref is None or (ref.queue_id, ref.database) != (queue_id, database):
            ref = self._found(tp, topic, queue_id, database)
            with self._lock:
                self._refs[tp] = ref
        return ref

    def _found(self, tp: TopicPartition, topic: TopicImage, queue_id: int, database: str) -> PartitionRef:
        link = self._thread.link
        config = link.config(topic)
        row = self._row(database, queue_id)
        if row is None or row.next_id == 1:
            # No client has appended yet; the one that made the row may have stopped before it made the table.
            self._thread.call(_make_tables(link, tp, topic, database))
            row = self._row(database, queue_id)
        if row is None:
            raise StoreAwayError(f"the table of {tp} does not exist")
        return PartitionRef(tp, queue_id, row.table, database, config)

    def _row(self, database: str, queue_id: int) -> QueueRow | None:
        try:
            return self._thread.read(database, lambda connection: stored_state.find_row(connection, queue_id))
        except StoreAwayError as error:
            if isinstance(error.__cause__, SchemaChanged):
                return None  # no client has used this database yet
            raise

    def _ensure_inbox(self, database: str) -> None:
        if database not in self._with_inbox:
            self._thread.call(migrate(self._thread.group(database).primary.database, INBOX))
            self._with_inbox.add(database)

    def _until_s(self) -> float:
        """When a transaction is not tried again: each try may have waited for a lock as long as the client allows."""
        return time.monotonic() + self._thread.timeout_ms / 1000

    def _change(self, work: Callable[[Connection], T], database: str = DEFAULT_DATABASE) -> T:
        """Again, if others held what was needed."""
        until_s = self._until_s()
        for attempt in range(_TRIES):
            try:
                return self._thread.change(database, work)
            except StoreAwayError as error:
                if (
                    attempt == _TRIES - 1
                    or time.monotonic() > until_s
                    or not isinstance(error.__cause__, Contended | Duplicate)
                ):
                    raise
            time.sleep(_PAUSE_S)
        raise AssertionError

    def _with_offset_tables(
        self, partitions: Iterable[TopicPartition], work: Callable[[Connection], T], *, is_read: bool = False
    ) -> T:
        """With the tables of offsets, which are made if they are missing."""
        topics = {tp.topic for tp in partitions}
        for _ in range(len(topics) + 1):
            try:
                return self._thread.read(DEFAULT_DATABASE, work) if is_read else self._change(work)
            except OffsetTableMissingError as error:
                self._make_offset_table(error.topic)
        raise StoreAwayError(f"the offset tables of {', '.join(sorted(topics))} do not exist")

    def _make_offset_tables(self, partitions: Iterable[TopicPartition]) -> None:
        asked = list(partitions)
        self._with_offset_tables(asked, lambda cn: group_tables.committed(cn, "", asked), is_read=True)

    def _make_offset_table(self, topic: str) -> None:
        self._thread.define(DEFAULT_DATABASE, lambda cn: group_tables.create_offset_table(cn, topic))


class _Committing:
    """Notes which offsets a commit writes: the new ones, or, while its outcome is unknown, the old or the new ones."""

    def __init__(self, expected: dict[TopicPartition, set[int | None]], offsets: GroupOffsets) -> None:
        self._expected = expected
        self._offsets = offsets

    def __enter__(self) -> Mapping[TopicPartition, set[int | None]]:
        return self._expected

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for tp, offset in self._offsets.positions.items():
            if error is None:
                self._expected[tp] = {offset}
            elif isinstance(error, FencedClaimError):
                self._expected.pop(tp, None)
            elif isinstance(error, StoreAwayError) and error.is_outcome_unknown and tp in self._expected:
                self._expected[tp] = {*self._expected[tp], offset}


async def _make_tables(link: Link, tp: TopicPartition, topic: TopicImage, database: str) -> None:
    async with link.making:
        await link.engine.create(tp, topic.id, link.config(topic), database)
        await link.engine.release(tp)


def _one_database(refs: Iterable[PartitionRef], wanted: str | None) -> str:
    databases = {ref.database for ref in refs} | ({wanted} if wanted is not None else set())
    if len(databases) > 1:
        raise StoreRefusedError(
            "a transaction cannot reach over several database groups: "
            + ", ".join(sorted(databases))
            + "; nothing was stored"
        )
    return next(iter(databases), DEFAULT_DATABASE)
