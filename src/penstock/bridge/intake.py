"""Intake: a member of the group that reads the delay topics and stores what it reads in the databases.

Offsets are stored for the group's commit after all databases have the batch. While a database is away the partitions
are paused and polling goes on, so that the group stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from penstock.bridge.bridge_metrics import BridgeMetrics
from penstock.bridge.delay_database import DelayDatabase, PartitionBatch, PositionBehind, RowTooLarge
from penstock.bridge.forwarded_message import dead_letter
from penstock.bridge.forwarder import Forwarder, RefusedError
from penstock.bridge.intake_message import Entry, IntakeRules, entry_of, shard_of
from penstock.bridge.options import StoreOptions
from penstock.bridge.prefixed_headers import renamed
from penstock.bridge.target_topics import TargetTopics
from penstock.clock import Clock
from penstock.ids import TopicPartition
from penstock.sdk.errors import ClientError
from penstock.sdk.kafka.group_consumer import KafkaGroupConsumer
from penstock.sdk.ports import Outgoing, Received
from penstock.sdk.problem_log import OngoingProblem
from penstock.sql.errors import DatabaseError

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S = 0.1
_LINGER_MS = 20
"""How long a batch is filled once it has a message."""
_AGAIN_S = 0.5


class Intake:
    """Runs until it is stopped; then leaves the group."""

    def __init__(
        self,
        consumer: KafkaGroupConsumer,
        databases: Sequence[DelayDatabase],
        dead_letters: Forwarder,
        topics: TargetTopics,
        options: StoreOptions,
        rules: IntakeRules,
        metrics: BridgeMetrics,
        clock: Clock,
    ) -> None:
        self._consumer = consumer
        self._databases = databases
        self._dead_letters = dead_letters
        self._topics = topics
        self._options = options
        self._rules = rules
        self._metrics = metrics
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-bridge-intake")
        self._assigned: set[TopicPartition] = set()
        self._new: set[TopicPartition] = set()
        """Assigned by the last poll: librdkafka remembers that they were paused when this member had them before."""
        self._next: dict[TopicPartition, int] = {}
        """Offsets behind the last message that was read, of partitions that are read without a gap."""
        self._sources: dict[str, str] = {}
        self._unstored: list[Received] = []
        """Was read, and is part of the next batch."""
        self._is_stopped = False
        self.problem = OngoingProblem(
            log, "delayed messages are not stored; retrying", "delayed messages are stored again"
        )

    def stop(self) -> None:
        """The batch that is being stored is finished, unless a database is away."""
        self._is_stopped = True

    async def run(self) -> None:
        try:
            await self._in_thread(lambda: self._consumer.join(self._options.topics, self))
            while not self._is_stopped:
                received = await self._in_thread(self._poll)
                if received:
                    await self._take(received)
        finally:
            await self._in_thread(self._close)
            self._thread.shutdown(wait=False)

    # The group's callbacks, in the thread that polls.

    def assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
        self._assigned.update(topic_partitions)
        self._new.update(topic_partitions)
        self._forget(topic_partitions)
        for tp in topic_partitions:
            self._next.pop(tp, None)
            self._sources.pop(tp.topic, None)

    def revoked(self, topic_partitions: Sequence[TopicPartition]) -> None:
        self._assigned.difference_update(topic_partitions)
        self._forget(topic_partitions)

    def lost(self, topic_partitions: Sequence[TopicPartition]) -> None:
        self.revoked(topic_partitions)

    def _forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Drop what was read of partitions that are read again from elsewhere, here or by another member."""
        gone = frozenset(topic_partitions)
        self._unstored[:] = [each for each in self._unstored if each.topic_partition not in gone]

    def _close(self) -> None:
        self._consumer.close()
        self._dead_letters.close()

    def _poll(self) -> list[Received]:
        deadline_ms = None
        unstored = self._unstored
        while len(unstored) < self._options.batch and sum(map(_size_of, unstored)) < self._options.batch_bytes:
            if deadline_ms is not None and self._clock.monotonic_ms() > deadline_ms:
                break
            more = self._consumer.poll(self._options.batch - len(unstored), _LINGER_MS / 1000 if unstored else _POLL_S)
            self._resume_new()
            unstored += more
            if not more:
                break
            if deadline_ms is None:
                deadline_ms = self._clock.monotonic_ms() + _LINGER_MS
        received, self._unstored = unstored, []
        return received

    # On the event loop.

    async def _take(self, received: Sequence[Received]) -> None:
        """Store a batch; repeats until it is stored, or has to be read again."""
        self._metrics.received.inc(len(received))
        buried: set[tuple[TopicPartition, int]] = set()
        paused: set[TopicPartition] = set()
        too_large: list[RowTooLarge] = []
        while True:
            try:
                while too_large:
                    place = too_large[0].topic_partition, too_large[0].offset
                    message = next(each for each in received if (each.topic_partition, each.offset) == place)
                    await self._bury(message, str(too_large[0]))
                    buried.add(place)
                    del too_large[0]
                ends = await self._store(received, buried)
                break
            except PositionBehind as behind:
                await self._read_again(received, behind)
                ends = {}
                break
            except RowTooLarge as error:
                too_large.append(error)
            except (DatabaseError, ClientError) as error:
                self.problem.report(error)
                if self._is_stopped:
                    ends = {}
                    break
                paused = await self._in_thread(partial(self._wait_polling, paused))
        self.problem.end()

        def finish() -> None:
            self._consumer.store_offsets({tp: end for tp, end in ends.items() if tp in self._assigned})
            if paused:
                self._consumer.resume(paused & self._assigned)

        await self._in_thread(finish)

    async def _store(
        self, received: Sequence[Received], buried: set[tuple[TopicPartition, int]]
    ) -> dict[TopicPartition, int]:
        by_partition: defaultdict[TopicPartition, list[Received]] = defaultdict(list)
        for each in received:
            by_partition[each.topic_partition].append(each)
        now_ms = self._clock.now_ms()
        shards = len(self._databases) * self._options.tables
        routed: dict[TopicPartition, list[tuple[int, Entry]]] = {}
        for tp, some in by_partition.items():
            entries = [
                entry_of(renamed(each, self._options.header_prefix), self._rules, now_ms)
                for each in some
                if (tp, each.offset) not in buried
            ]
            routed[tp] = [
                (shard_of(entry, tp.partition, shards, by_topic=self._options.by_topic), entry) for entry in entries
            ]
        for tp, some in by_partition.items():
            if some[0].offset < self._next.get(tp, 0):
                # The topic may have been deleted and made anew.
                self._sources.pop(tp.topic, None)
                del self._next[tp]
        sources = {tp: f"{await self._source(tp.topic)}/{tp.partition}" for tp in by_partition}
        for database in self._databases:
            first = database.layout.index * self._options.tables
            batches = [
                PartitionBatch(
                    topic_partition=tp,
                    source=sources[tp],
                    start=self._next.get(tp, some[0].offset),
                    end=some[-1].offset + 1,
                    entries=[(shard - first, entry) for shard, entry in routed[tp] if shard - first in database.shards],
                )
                for tp, some in by_partition.items()
            ]
            stored = await database.store(batches)
            self._metrics.removed.inc(stored.removed)
            self._metrics.repeats_avoided.inc(stored.repeated)
        ends = {tp: some[-1].offset + 1 for tp, some in by_partition.items()}
        self._next |= ends
        return ends

    async def _source(self, topic: str) -> str:
        if topic not in self._sources:
            self._sources[topic] = await self._in_thread(lambda: self._topics.topic_id(topic))
        return self._sources[topic]

    async def _read_again(self, received: Sequence[Received], behind: PositionBehind) -> None:
        """Nothing of the batch counts; its partitions are read from where they were, one of them from further back."""
        log.warning("%s: reading again from there; the database may be a copy from before", behind)
        starts: dict[TopicPartition, int] = {}
        for each in received:
            starts.setdefault(each.topic_partition, each.offset)
        starts[behind.topic_partition] = behind.offset

        def seek() -> None:
            self._forget(starts)
            for tp, offset in starts.items():
                if self._consumer.seek(tp, offset):
                    self._next[tp] = offset
                else:
                    # What comes next has a gap before it, so the database sends us back once more.
                    self._next.pop(tp, None)

        await self._in_thread(seek)

    async def _bury(self, message: Received, reason: str) -> None:
        letter = dead_letter(message, self._options.dead_topic, f"the database cannot store the message: {reason}")
        try:
            await self._in_thread(lambda: self._dead_letters.forward([letter], []))
        except RefusedError as refused:
            headers = dead_letter(message, letter.topic, f"{reason}; its value is left out: {refused}").headers
            smaller = Outgoing(topic=letter.topic, value=None, headers=headers)
            try:
                await self._in_thread(lambda: self._dead_letters.forward([smaller], []))
            except RefusedError as again:
                raise ClientError(f"the dead-letter topic {letter.topic} accepts no messages: {again}") from None
        self._metrics.dead_lettered.inc()

    def _resume_new(self) -> None:
        if self._new:
            self._consumer.resume(self._new & self._assigned)
            self._new.clear()

    def _wait_polling(self, paused: set[TopicPartition]) -> set[TopicPartition]:
        """In the thread that polls: stay in the group without receiving; the partitions that are paused."""
        paused = (paused | self._assigned) & self._assigned
        self._consumer.pause(paused)
        self._unstored += self._consumer.poll(1, _AGAIN_S)
        self._resume_new()
        return paused

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _size_of(message: Received) -> int:
    return len(message.value or b"") + len(message.key or b"")
