"""A store in the memory of this process: events inside of one program, and the topics of a `tcp://` server.

Memory is bounded (`max_messages`). When it is full, messages that every group has read go first, and those of topics
that no group reads; if nothing can go, producers wait.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.brokerless.memory.groups import MemoryGroups
from penstock.brokerless.memory.topics import MAX_BYTES, MAX_MESSAGES, MemoryTopics
from penstock.brokerless.record_codec import size_of
from penstock.brokerless.store import (
    FencedClaimError,
    Granted,
    GroupClaims,
    GroupMember,
    GroupOffsets,
    IdFence,
    ReadPage,
    SendBatch,
    Sequenced,
    StoreAwayError,
    StoreRefusedError,
)
from penstock.brokerless.topic_entries import TopicEntry, new_topic
from penstock.clock import Clock, SystemClock
from penstock.ids import TopicPartition
from penstock.sdk.backend import AS_BACKEND_SAYS, TopicShape
from penstock.sdk.errors import BufferFullError, SendError, TopicError
from penstock.sdk.ports import Outgoing
from penstock.sdk.timers import TimerQuery, WaitingMessage, select_timers

MAX_PRODUCERS = 10_000
"""How many producers are remembered, to recognise what they repeat."""
_TRIM_SHARE = 0.1
"""How much of a full memory is freed at a time."""


class _MemoryTopicAdmin:
    """The topics of a store, under its lock."""

    def __init__(self, topics: MemoryTopics, lock: threading.Condition) -> None:
        self._topics = topics
        self._lock = lock

    def shape(self, topic: str) -> TopicShape | None:
        with self._lock:
            return self._topics.shape(topic)

    def partitions(self, topic: str) -> int:
        with self._lock:
            return self._topics.partitions(topic)

    def create(
        self,
        topic: str,
        partitions: int = AS_BACKEND_SAYS,
        replicas: int = AS_BACKEND_SAYS,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        entry = new_topic(topic, partitions, config, {}, self._topics.default_partitions)
        with self._lock:
            if entry.view_of is not None:
                self._topics.partitions(entry.view_of)
            return self._topics.create(topic, entry.partitions, replicas, entry.settings)


class MemoryStore:
    """A `QueueStore` in memory. Several clients can share one; `close` is for the last of them."""

    incarnation = ""

    def __init__(
        self,
        *,
        partitions: int = 1,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        address: str = "memory://",
        clock: Clock | None = None,
    ) -> None:
        self.address = address
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._logs = MemoryTopics(partitions, max_messages, max_bytes)
        self._groups = MemoryGroups()
        self._sequences: OrderedDict[tuple[int, TopicPartition], tuple[Sequenced, Sequence[int | None]]] = OrderedDict()
        """The last batch of each producer and partition, with its offsets."""
        self._fences: dict[str, int] = {}
        self._is_closed = False
        self.topics = _MemoryTopicAdmin(self._logs, self._changed)
        self._thread = threading.Thread(target=self._deliver, name="penstock-memory-timers", daemon=True)
        self._thread.start()

    def settings(self, topic: str) -> Mapping[str, str]:
        with self._changed:
            return self._logs.settings(topic)

    # Messages

    def append(self, batch: SendBatch) -> Sequence[int | None]:
        with self._changed:
            return self._appended([batch])[0]

    def is_writable(self, topic_partition: TopicPartition) -> bool:
        return True

    def read(self, topic_partition: TopicPartition, offset: int, max_count: int) -> ReadPage:
        with self._changed:
            self._check(topic_partition)
            return ReadPage(*self._logs.read(*topic_partition, offset, max_count))

    def bounds(self, topic_partition: TopicPartition) -> tuple[int, int]:
        with self._changed:
            self._check(topic_partition)
            return self._logs.start_offset(*topic_partition), self._logs.end_offset(*topic_partition)

    def wait(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_more(positions), timeout_s)

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        with self._changed:
            self._logs.partitions(query.topic)
            waiting = [
                WaitingMessage(
                    *each.topic_partition, each.due_ms, each.outgoing.value, each.outgoing.key, each.outgoing.headers
                )
                for each in self._logs.pending(query.topic)
            ]
        return select_timers(waiting, query)

    # Groups

    def heartbeat(self, group: str, member: GroupMember, session_ms: int) -> GroupClaims:
        with self._changed:
            return self._groups.group(group).heartbeat(member, session_ms, self._clock.monotonic_ms())

    def claim(self, group: str, member: str, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, Granted]:
        with self._changed:
            return self._groups.group(group).claim(member, wanted, self._clock.monotonic_ms())

    def release(self, group: str, member: str, epochs: Mapping[TopicPartition, int]) -> None:
        with self._changed:
            self._groups.group(group).release(member, epochs)

    def leave(self, group: str, member: str) -> None:
        with self._changed:
            self._groups.group(group).leave(member)

    def committed(self, group: str, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        with self._changed:
            committed = self._groups.group(group).committed
            return {tp: committed[tp] for tp in asked if tp in committed}

    def commit(self, offsets: GroupOffsets) -> None:
        with self._changed:
            self._groups.group(offsets.group).commit(offsets)
            self._changed.notify_all()

    def commit_initial(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        with self._changed:
            committed = self._groups.group(group).committed
            for tp, position in positions.items():
                committed.setdefault(tp, position)

    # Transactions

    def fence(self, transactional_id: str) -> IdFence:
        with self._changed:
            epoch = self._fences[transactional_id] = self._fences.get(transactional_id, 0) + 1
            return IdFence(transactional_id, epoch)

    def commit_transaction(
        self, batches: Sequence[SendBatch], offsets: GroupOffsets | None, fence: IdFence | None
    ) -> Sequence[Sequence[int | None]]:
        with self._changed:
            if fence is not None and self._fences.get(fence.transactional_id) != fence.epoch:
                raise FencedClaimError(f"another client uses the transactional id {fence.transactional_id}")
            if offsets is not None:
                self._groups.group(offsets.group).check(offsets)
            written = self._appended(batches)
            if offsets is not None:
                self._groups.group(offsets.group).commit(offsets)
            return written

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    # Under the lock.

    def _appended(self, batches: Sequence[SendBatch]) -> list[Sequence[int | None]]:
        """Checks everything before it appends anything."""
        if self._is_closed:
            raise StoreAwayError(f"{self.address} is closed")
        now_ms = self._clock.now_ms()
        for number, batch in enumerate(batches):
            for place, message in enumerate(batch.messages):
                self._check_message(batch.topic_partition, message, now_ms, (number, place))
        answers = [self._once(batch, now_ms) for batch in batches]
        self._changed.notify_all()
        return answers

    def _check_message(self, tp: TopicPartition, message: Outgoing, now_ms: int, place: tuple[int, int]) -> None:
        try:
            if self._logs.is_full:
                self._make_room()
            self._logs.check(replace(message, partition=tp.partition), now_ms)
            self._check_size(message)
        except BufferFullError as error:
            raise StoreAwayError(str(error)) from None
        except SendError as error:
            raise StoreRefusedError(str(error), place=place) from None

    def _check_size(self, message: Outgoing) -> None:
        most = TopicEntry(1, self._logs.settings(message.topic)).max_message_bytes
        if (size := size_of(message)) > most:
            raise SendError(
                f"a message of {size} bytes is larger than {most}, the max.message.bytes of {message.topic};"
                " it was not stored"
            )

    def _once(self, batch: SendBatch, now_ms: int) -> Sequence[int | None]:
        tp, sequence = batch.topic_partition, batch.sequence
        known = self._sequences.get((sequence.producer_id, tp))
        if known is not None and known[0].first == sequence.first:
            return known[1]
        offsets = [self._logs.append(replace(message, partition=tp.partition), now_ms)[1] for message in batch.messages]
        self._sequences[sequence.producer_id, tp] = (sequence, offsets)
        self._sequences.move_to_end((sequence.producer_id, tp))
        if len(self._sequences) > MAX_PRODUCERS:
            self._sequences.popitem(last=False)
        return offsets

    def _make_room(self) -> None:
        """Free what every group has read, and what no group reads, the oldest first."""
        for topic in self._logs.names():
            for partition in range(self._logs.partitions(topic)):
                start, end = self._logs.start_offset(topic, partition), self._logs.end_offset(topic, partition)
                floor = self._groups.floor(self._logs.shown_as(topic), partition, start)
                spare = start + max(1, int((end - start) * _TRIM_SHARE))
                self._logs.trim(topic, partition, spare if floor is None else floor)

    def _has_more(self, positions: Mapping[TopicPartition, int]) -> bool:
        return any(self._logs.end_offset(*tp) > position for tp, position in positions.items())

    def _check(self, tp: TopicPartition) -> None:
        if tp.partition >= self._logs.partitions(tp.topic):
            raise TopicError(f"topic {tp.topic} has no partition {tp.partition}")

    def _deliver(self) -> None:
        """A thread: deliver what is due."""
        with self._changed:
            while not self._is_closed:
                now_ms = self._clock.now_ms()
                if self._logs.fire(now_ms):
                    self._changed.notify_all()
                due_ms = self._logs.next_due_ms()
                self._changed.wait(None if due_ms is None else max(0, due_ms - self._clock.now_ms()) / 1000)
