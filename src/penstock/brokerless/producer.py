"""Sends messages to a store in batches.

Each partition has a lane: messages wait there for others (`linger`), and one batch at a time is with the store, so that
order holds. What arrives meanwhile forms the next batch. A scheduler thread decides which lane is next, a few worker
threads call the store.

    routed --linger over, batch full, flush--> with the store --answered--> reported
                    ^                                |
                    +------ away: back-off ----------+

A batch that may have been stored is repeated as it was, with the same sequence, until the store answers or its time is
over. Messages without a key leave a partition that is away for another one, if they certainly were not stored.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from penstock.brokerless.partitioner import partition_of_key
from penstock.brokerless.store import QueueStore, SendBatch, Sequenced, StoreAwayError, StoreRefusedError
from penstock.clock import Clock, SystemClock
from penstock.durations import duration_ms
from penstock.ids import TopicPartition
from penstock.sdk.backend import Done
from penstock.sdk.errors import BufferFullError, ClientError, ClosedError, SendError
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.problem_log import OngoingProblem
from penstock.sdk.send.sending_options import Sending

log = logging.getLogger(__name__)

MAX_BATCH_MESSAGES = 5_000
"""The largest number of messages in one call of the store."""
WORKERS = 4
"""How many partitions are written at the same time."""
_AMPLE = 0.9
"""The fraction of a bound below which there certainly is room."""
_ROOM_S = 0.05
_BACK_OFF_MS = 50
_MAX_BACK_OFF_MS = 1_000
_SHAPE_MS = 5_000
"""How soon a producer notices that a topic has grown."""
_STICKY_MESSAGES = 1_000
"""How many messages without a key go to one partition before it is the turn of the next, if no batch ends earlier."""
FIRST_PRODUCER_ID = 1 << 62
"""Producers of stores draw their ids at random from here on. Brokers hand theirs out from 0 on."""


def new_producer_id() -> int:
    return FIRST_PRODUCER_ID + secrets.randbits(61)


@dataclass(eq=False, slots=True)
class _Pending:
    """A message that was accepted and not reported."""

    outgoing: Outgoing
    done: Done
    since_ms: float
    deadline_ms: float

    @property
    def is_free(self) -> bool:
        """Whether any partition will do."""
        return self.outgoing.partition is None and self.outgoing.key is None


@dataclass(eq=False, slots=True)
class _Lane:
    """What waits for one partition."""

    topic_partition: TopicPartition
    waiting: deque[_Pending] = field(default_factory=deque)
    waiting_bytes: int = 0
    next_sequence: int = 0
    is_busy: bool = False
    repeated: list[_Pending] | None = None
    """A batch that may have been stored; it has to be repeated before anything else."""
    not_before_ms: float = 0.0
    back_off_ms: int = _BACK_OFF_MS
    one_by_one: int = 0
    """So many messages go alone: one of them was refused, and the others must not be refused with it."""


@dataclass(slots=True)
class _TopicRoutes:
    """How messages of one topic find their partitions."""

    partitions: int
    known_ms: float
    turn: int = 0
    given: int = 0


class StoreProducer:
    """A `BatchProducer` on a store."""

    has_failed = False

    def __init__(
        self, store: QueueStore, sending: Sending, *, endless: bool = False, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._linger_ms = duration_ms(sending.linger)
        self._batch_bytes = sending.batch_bytes
        self._max_messages, self._max_bytes = sending.memory_bounds(endless=endless)
        self._patience_ms = float("inf") if endless else sending.patience_ms
        self._tries_again = sending.delivery != "at-most-once"
        self._producer_id = new_producer_id()
        self._changed = threading.Condition()
        self._routes: dict[str, _TopicRoutes] = {}
        self._unrouted: dict[str, deque[_Pending]] = {}
        """Messages of topics whose size has to be looked up, in order."""
        self._looking_up: set[str] = set()
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._outstanding = 0
        self._outstanding_bytes = 0
        self._flushing = 0
        self._given_up_ms = -1.0
        """What was accepted until then is not repeated any more."""
        self._is_closed = False
        self._is_ending = False
        self._problem = OngoingProblem(
            log, f"{store.address} does not take messages; trying again", f"{store.address} takes messages again"
        )
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="penstock-store-writer")
        self._thread = threading.Thread(target=self._run, name="penstock-store-sender", daemon=True)
        self._thread.start()

    @property
    def outstanding(self) -> int:
        return self._outstanding

    def has_room_for(self, outgoing: Outgoing) -> bool:
        has_message_room = self._outstanding < self._max_messages * _AMPLE
        return has_message_room and self._outstanding_bytes + outgoing.size_bytes < self._max_bytes * _AMPLE

    def produce(self, outgoing: Outgoing, done: Done, room_s: float = 0.0) -> None:
        now_ms = self._clock.monotonic_ms()
        pending = _Pending(outgoing, done, now_ms, now_ms + self._patience_ms)
        with self._changed:
            self._wait_for_room(outgoing, now_ms + room_s * 1000)
            self._outstanding += 1
            self._outstanding_bytes += outgoing.size_bytes
            self._route(pending)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: self._outstanding == 0, timeout_s)
            finally:
                self._flushing -= 1

    def purge(self) -> None:
        with self._changed:
            given_up = [each for queue in self._unrouted.values() for each in queue]
            self._unrouted.clear()
            for lane in self._lanes.values():
                given_up += lane.waiting
                lane.waiting.clear()
                lane.waiting_bytes = 0
                if lane.repeated is not None and not lane.is_busy:
                    given_up += lane.repeated
                    lane.repeated = None
            self._given_up_ms = self._clock.monotonic_ms()
        for each in given_up:
            self._report(each, SendError("the message was given up", is_retriable=True))
        with self._changed:
            self._changed.wait_for(lambda: self._outstanding == 0)

    def close(self) -> None:
        with self._changed:
            self._is_closed = self._is_ending = True
            self._changed.notify_all()
        self.purge()
        self._thread.join()
        self._workers.shutdown()

    def retire(self) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    # Routing. The lock is held.

    def _wait_for_room(self, outgoing: Outgoing, until_ms: float) -> None:
        while True:
            if self._is_closed:
                raise ClosedError("the client is closed")
            is_too_many = self._outstanding >= self._max_messages
            if not is_too_many and self._outstanding_bytes + outgoing.size_bytes <= self._max_bytes:
                return
            if self._outstanding == 0:
                raise BufferFullError(f"a message to {outgoing.topic} is larger than the buffer")
            left_s = (until_ms - self._clock.monotonic_ms()) / 1000
            if left_s <= 0:
                raise BufferFullError(
                    f"no room for a message to {outgoing.topic}: {self._outstanding} messages wait for"
                    f" {self._store.address}",
                    is_retriable=True,
                )
            self._changed.wait(min(left_s, _ROOM_S))

    def _route(self, pending: _Pending) -> None:
        """Behind everything of its topic that was not routed yet, or order would be lost."""
        topic = pending.outgoing.topic
        routes = self._routes.get(topic)
        is_fresh = routes is not None and self._clock.monotonic_ms() - routes.known_ms < _SHAPE_MS
        if routes is None or not is_fresh or topic in self._unrouted:
            self._unrouted.setdefault(topic, deque()).append(pending)
        else:
            self._enqueue(self._partition_of(pending, routes), pending)

    def _enqueue(self, partition: int, pending: _Pending) -> None:
        tp = TopicPartition(pending.outgoing.topic, partition)
        lane = self._lanes.get(tp)
        if lane is None:
            lane = self._lanes[tp] = _Lane(tp)
        lane.waiting.append(pending)
        lane.waiting_bytes += pending.outgoing.size_bytes

    def _partition_of(self, pending: _Pending, routes: _TopicRoutes) -> int:
        outgoing = pending.outgoing
        if outgoing.partition is not None:
            return outgoing.partition
        if outgoing.key is not None:
            return partition_of_key(outgoing.key, routes.partitions)
        if routes.given >= _STICKY_MESSAGES:
            self._next_turn(routes, outgoing.topic)
        routes.given += 1
        return routes.turn % routes.partitions

    def _next_turn(self, routes: _TopicRoutes, topic: str) -> None:
        """Messages without a key go on with the next partition that takes messages, or with the next one if none
        does.
        """
        routes.given = 0
        for step in range(1, routes.partitions + 1):
            turn = (routes.turn + step) % routes.partitions
            if self._store.is_writable(TopicPartition(topic, turn)):
                routes.turn = turn
                return
        routes.turn = (routes.turn + 1) % routes.partitions

    # The scheduler.

    def _run(self) -> None:
        with self._changed:
            while not self._is_ending or self._outstanding:
                wait_s = self._dispatch()
                if wait_s > 0:
                    self._changed.wait(wait_s)

    def _dispatch(self) -> float:
        """Give workers what is ready; how long there is nothing else to do."""
        now_ms = self._clock.monotonic_ms()
        next_ms = now_ms + 1_000
        for topic in self._unrouted.keys() - self._looking_up:
            self._looking_up.add(topic)
            self._workers.submit(self._look_up, topic)
        for lane in self._lanes.values():
            if lane.is_busy or not (lane.waiting or lane.repeated):
                continue
            ready_ms = self._ready_ms(lane)
            if ready_ms > now_ms:
                next_ms = min(next_ms, ready_ms)
                continue
            lane.is_busy = True
            messages = lane.repeated or self._taken(lane, now_ms)
            self._workers.submit(self._send, lane, messages)
        return (next_ms - now_ms) / 1000

    def _ready_ms(self, lane: _Lane) -> float:
        if lane.repeated:
            return lane.not_before_ms
        is_full = lane.waiting_bytes >= self._batch_bytes or len(lane.waiting) >= MAX_BATCH_MESSAGES
        if is_full or self._flushing or self._is_ending:
            return lane.not_before_ms
        return max(lane.not_before_ms, lane.waiting[0].since_ms + self._linger_ms)

    def _taken(self, lane: _Lane, now_ms: float) -> list[_Pending]:
        taken: list[_Pending] = []
        size = 0
        most = 1 if lane.one_by_one else MAX_BATCH_MESSAGES
        while lane.waiting and len(taken) < most:
            size += lane.waiting[0].outgoing.size_bytes
            if taken and size > self._batch_bytes:
                break
            taken.append(lane.waiting.popleft())
        lane.waiting_bytes -= sum(each.outgoing.size_bytes for each in taken)
        routes = self._routes.get(lane.topic_partition.topic)
        if routes is not None and routes.turn % routes.partitions == lane.topic_partition.partition:
            self._next_turn(routes, lane.topic_partition.topic)
        return taken

    # Workers.

    def _look_up(self, topic: str) -> None:
        try:
            topics = self._store.topics
            if topics.shape(topic) is None:
                topics.create(topic)
            partitions = topics.partitions(topic)
        except ClientError as error:
            self._could_not_look_up(topic, error)
            return
        except BaseException as error:
            log.exception("a bug in the SDK: could not look up topic %s", topic)
            self._could_not_look_up(topic, error)
            return
        with self._changed:
            self._looking_up.discard(topic)
            known = self._routes.get(topic)
            turn = known.turn if known is not None else secrets.randbelow(partitions)
            routes = self._routes[topic] = _TopicRoutes(partitions, self._clock.monotonic_ms(), turn)
            refused = []
            for pending in self._unrouted.pop(topic, ()):
                if pending.outgoing.partition is not None and pending.outgoing.partition >= partitions:
                    refused.append(pending)
                else:
                    self._enqueue(self._partition_of(pending, routes), pending)
            self._changed.notify_all()
        for pending in refused:
            what = f"topic {topic} has no partition {pending.outgoing.partition}: it has {partitions}"
            self._report(pending, SendError(what))

    def _could_not_look_up(self, topic: str, error: BaseException) -> None:
        """Messages whose time is over fail; the others wait for the next try."""
        is_lasting = not isinstance(error, ClientError) or isinstance(error, StoreRefusedError)
        now_ms = self._clock.monotonic_ms()
        with self._changed:
            expired, kept = self._divided(self._unrouted.get(topic, ()), float("inf") if is_lasting else now_ms)
            if kept:
                self._unrouted[topic] = deque(kept)
            else:
                self._unrouted.pop(topic, None)
        for each in expired:
            self._report(each, SendError(f"could not send a message to {topic}: {error}", is_retriable=not is_lasting))
        if kept:
            self._problem.report(error)
            threading.Event().wait(_BACK_OFF_MS / 1000)
        with self._changed:
            self._looking_up.discard(topic)
            self._changed.notify_all()

    def _send(self, lane: _Lane, messages: list[_Pending]) -> None:
        tp = lane.topic_partition
        batch = SendBatch(tp, [each.outgoing for each in messages], Sequenced(self._producer_id, lane.next_sequence))
        try:
            offsets = self._store.append(batch)
        except StoreAwayError as error:
            self._was_away(lane, messages, error)
        except (StoreRefusedError, ClientError) as error:
            self._was_refused(lane, messages, error)
        except BaseException as error:
            log.exception("a bug in the SDK: could not append to %s", tp)
            self._was_refused(lane, messages, error)
        else:
            self._problem.end()
            with self._changed:
                lane.next_sequence += len(messages)
                lane.back_off_ms = _BACK_OFF_MS
                lane.one_by_one = max(0, lane.one_by_one - len(messages))
            self._finish(lane, None)
            for each, offset in zip(messages, offsets, strict=True):
                self._report(each, Receipt(tp.topic, tp.partition, offset))

    def _was_away(self, lane: _Lane, messages: list[_Pending], error: StoreAwayError) -> None:
        now_ms = self._clock.monotonic_ms()
        may_be_stored = error.is_outcome_unknown or lane.repeated is not None
        expired, kept = self._divided(messages, now_ms)
        if kept:
            self._problem.report(error)
        with self._changed:
            lane.not_before_ms = now_ms + lane.back_off_ms
            lane.back_off_ms = min(lane.back_off_ms * 2, _MAX_BACK_OFF_MS)
            if may_be_stored and kept:
                # The batch is repeated as it is, or numbers would change; what is late is repeated with it.
                expired, repeated = [], messages
            else:
                repeated = None
                if may_be_stored:
                    lane.next_sequence += len(messages)
                self._take_back(lane, kept)
        self._finish(lane, repeated)
        for each in expired:
            what = f"could not send a message to {lane.topic_partition.topic}: {error}"
            self._report(each, SendError(what, is_retriable=True))

    def _divided(self, messages: Iterable[_Pending], now_ms: float) -> tuple[list[_Pending], list[_Pending]]:
        """Messages that fail now, and those that are tried again."""
        expired: list[_Pending] = []
        kept: list[_Pending] = []
        for each in messages:
            is_given_up = each.deadline_ms <= now_ms or each.since_ms <= self._given_up_ms
            (expired if is_given_up or not self._tries_again else kept).append(each)
        return expired, kept

    def _take_back(self, lane: _Lane, messages: Sequence[_Pending]) -> None:
        """Messages that certainly were not stored wait again, first; those without a key where messages are taken."""
        routes = self._routes[lane.topic_partition.topic]
        is_away = not self._store.is_writable(lane.topic_partition)
        if is_away and routes.turn == lane.topic_partition.partition:
            self._next_turn(routes, lane.topic_partition.topic)
        for each in reversed(messages):
            if each.is_free and is_away:
                self._enqueue(self._partition_of(each, routes), each)
            else:
                lane.waiting.appendleft(each)
                lane.waiting_bytes += each.outgoing.size_bytes

    def _was_refused(self, lane: _Lane, messages: list[_Pending], error: BaseException) -> None:
        with self._changed:
            lane.one_by_one = max(0, lane.one_by_one - 1)
            if len(messages) > 1:
                # Alone each of them shows whether it is the cause.
                lane.one_by_one = len(messages)
                lane.waiting.extendleft(reversed(messages))
                lane.waiting_bytes += sum(each.outgoing.size_bytes for each in messages)
            if lane.repeated is not None:
                lane.next_sequence += len(messages)
        self._finish(lane, None)
        if len(messages) == 1:
            self._report(messages[0], SendError(f"could not send a message to {lane.topic_partition.topic}: {error}"))

    def _finish(self, lane: _Lane, repeated: list[_Pending] | None) -> None:
        with self._changed:
            lane.repeated = repeated
            lane.is_busy = False
            self._changed.notify_all()

    def _report(self, pending: _Pending, result: Receipt | SendError) -> None:
        try:
            pending.done(result)
        except Exception:
            log.exception("a callback of a sent message raised")
        finally:
            with self._changed:
                self._outstanding -= 1
                self._outstanding_bytes -= pending.outgoing.size_bytes
                self._changed.notify_all()
