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

from penstock.brokerless.send_lanes import (
    BACK_OFF_MS,
    Lane,
    PendingSend,
    SingleReport,
    count_of,
    cut_at,
    is_any_partition_right,
    runs_of,
)
from penstock.brokerless.store import QueueStore, SendBatch, Sequenced, StoreAwayError, StoreRefusedError
from penstock.brokerless.topic_routes import TopicRoutes
from penstock.clock import Clock, SystemClock
from penstock.durations import duration_ms
from penstock.ids import TopicPartition
from penstock.sdk.backend import Done
from penstock.sdk.errors import BufferFullError, ClientError, ClosedError, SendError, TopicError
from penstock.sdk.ports import Outgoing
from penstock.sdk.problem_log import OngoingProblem
from penstock.sdk.send.send_outcome import SendOutcome
from penstock.sdk.send.sending_options import Sending

log = logging.getLogger(__name__)

WORKERS = 4
"""How many partitions are written at the same time."""
_AMPLE = 0.9
"""The fraction of a bound below which there certainly is room."""
_ROOM_S = 0.05
_MAX_BACK_OFF_MS = 1_000
_ALONE = (0,)
"""The place of a message that is not sent with others."""
_SHAPE_MS = 5_000
"""How soon a producer notices that a topic has grown."""
FIRST_PRODUCER_ID = 1 << 62
"""Producers of stores draw their ids at random from here on. Brokers hand theirs out from 0 on."""


def new_producer_id() -> int:
    return FIRST_PRODUCER_ID + secrets.randbits(61)


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
        self._routes: dict[str, TopicRoutes] = {}
        self._unrouted: dict[str, deque[PendingSend]] = {}
        """Messages of topics whose size has to be looked up, in order."""
        self._looking_up: set[str] = set()
        self._lanes: dict[TopicPartition, Lane] = {}
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

    def has_room_for(self, count: int, size_bytes: int) -> bool:
        has_message_room = self._outstanding + count - 1 < self._max_messages * _AMPLE
        return has_message_room and self._outstanding_bytes + size_bytes < self._max_bytes * _AMPLE

    def produce(self, outgoing: Outgoing, done: Done, room_s: float = 0.0) -> None:
        now_ms = self._clock.monotonic_ms()
        is_free = outgoing.partition is None and outgoing.key is None
        report = SingleReport(outgoing.topic, done)
        deadline_ms = now_ms + self._patience_ms
        run = PendingSend((outgoing,), _ALONE, outgoing.size_bytes, report, now_ms, deadline_ms, is_free=is_free)
        self._accept(run, now_ms + room_s * 1000)

    def produce_many(self, messages: Sequence[Outgoing], outcome: SendOutcome, room_s: float = 0.0) -> None:
        """Accepts all messages or none."""
        now_ms = self._clock.monotonic_ms()
        run = PendingSend(
            messages,
            range(len(messages)),
            sum(message.size_bytes for message in messages),
            outcome,
            now_ms,
            now_ms + self._patience_ms,
            lingers=False,
            is_free=is_any_partition_right(messages),
        )
        self._accept(run, now_ms + room_s * 1000)

    def _accept(self, run: PendingSend, until_ms: float) -> None:
        with self._changed:
            self._wait_for_room(run, until_ms)
            self._outstanding += len(run.messages)
            self._outstanding_bytes += run.size_bytes
            if self._route(run):
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
                given_up += lane.clear()
                if lane.repeated is not None and not lane.is_busy:
                    given_up += lane.repeated
                    lane.repeated = None
            self._given_up_ms = self._clock.monotonic_ms()
        self._report_failed(given_up, "the message was given up", is_retriable=True)
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

    def _wait_for_room(self, run: PendingSend, until_ms: float) -> None:
        count, topic = len(run.messages), run.messages[0].topic
        what = f"a message to {topic}" if count == 1 else f"{count} messages to {topic}"
        while True:
            if self._is_closed:
                raise ClosedError("the client is closed")
            is_too_many = self._outstanding + count > self._max_messages
            if not is_too_many and self._outstanding_bytes + run.size_bytes <= self._max_bytes:
                return
            if count > self._max_messages or run.size_bytes > self._max_bytes:
                raise BufferFullError(
                    f"{what} {'is' if count == 1 else 'are'} larger than the buffer of {self._max_messages} messages"
                    f" and {self._max_bytes} bytes; nothing was sent"
                )
            left_s = (until_ms - self._clock.monotonic_ms()) / 1000
            if left_s <= 0:
                raise BufferFullError(
                    f"no room for {what}: {self._outstanding} messages wait for {self._store.address}",
                    is_retriable=True,
                )
            self._changed.wait(min(left_s, _ROOM_S))

    def _route(self, run: PendingSend) -> bool:
        """Behind everything of its topic that was not routed yet, or order would be lost. Whether the scheduler has to
        look again.
        """
        topic = run.messages[0].topic
        routes = self._routes.get(topic)
        is_fresh = routes is not None and self._clock.monotonic_ms() - routes.known_ms < _SHAPE_MS
        if routes is None or not is_fresh or topic in self._unrouted:
            self._unrouted.setdefault(topic, deque()).append(run)
            return True
        return self._enqueue(run, routes)

    def _enqueue(self, run: PendingSend, routes: TopicRoutes) -> bool:
        """Each message in the lane of its partition. Whether the scheduler has to look again."""
        if len(run.messages) == 1:
            return self._add(routes.partition_of(run.messages[0]), run)
        by_partition: dict[int, list[int]] = {}
        for index, message in enumerate(run.messages):
            by_partition.setdefault(routes.partition_of(message), []).append(index)
        is_changed = False
        for partition, chosen in by_partition.items():
            for part in runs_of(run, chosen, self._batch_bytes):
                is_changed |= self._add(partition, part)
        return is_changed

    def _add(self, partition: int, run: PendingSend) -> bool:
        tp = TopicPartition(run.messages[0].topic, partition)
        lane = self._lanes.get(tp)
        if lane is None:
            lane = self._lanes[tp] = Lane(tp)
        was_empty = not lane.waiting
        lane.add(run)
        return not lane.is_busy and (was_empty or lane.is_full(self._batch_bytes))

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
            self._workers.submit(self._send, lane, lane.repeated or self._taken(lane))
        return (next_ms - now_ms) / 1000

    def _ready_ms(self, lane: Lane) -> float:
        if lane.repeated:
            return lane.not_before_ms
        first = lane.waiting[0]
        if not first.lingers or lane.is_full(self._batch_bytes) or self._flushing or self._is_ending:
            return lane.not_before_ms
        return max(lane.not_before_ms, first.since_ms + self._linger_ms)

    def _taken(self, lane: Lane) -> list[PendingSend]:
        taken = lane.take(self._batch_bytes)
        routes = self._routes.get(lane.topic_partition.topic)
        if routes is not None and routes.current == lane.topic_partition.partition:
            routes.next_turn()
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
            routes = TopicRoutes(topic, partitions, self._clock.monotonic_ms(), self._store.is_writable, turn)
            self._routes[topic] = routes
            refused: list[PendingSend] = []
            for run in self._unrouted.pop(topic, ()):
                numbers = [message.partition or 0 for message in run.messages]
                if max(numbers) < partitions:
                    self._enqueue(run, routes)
                    continue
                refused.append(run.part([index for index, number in enumerate(numbers) if number >= partitions]))
                if known_ones := [index for index, number in enumerate(numbers) if number < partitions]:
                    self._enqueue(run.part(known_ones), routes)
            self._changed.notify_all()
        for each in refused:
            what = f"topic {topic} has no partition {each.messages[0].partition}: it has {partitions}"
            self._report_failed([each], what)

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
        what = f"could not send a message to {topic}: {error}"
        self._report_failed(expired, what, is_retriable=not is_lasting)
        if kept:
            self._problem.report(error)
            threading.Event().wait(BACK_OFF_MS / 1000)
        with self._changed:
            self._looking_up.discard(topic)
            self._changed.notify_all()

    def _send(self, lane: Lane, runs: list[PendingSend]) -> None:
        tp = lane.topic_partition
        messages = runs[0].messages if len(runs) == 1 else [message for run in runs for message in run.messages]
        batch = SendBatch(tp, messages, Sequenced(self._producer_id, lane.next_sequence))
        try:
            offsets = self._store.append(batch)
        except StoreAwayError as error:
            self._was_away(lane, runs, error)
        except (StoreRefusedError, ClientError) as error:
            self._was_refused(lane, runs, error)
        except BaseException as error:
            log.exception("a bug in the SDK: could not append to %s", tp)
            self._was_refused(lane, runs, error)
        else:
            self._problem.end()
            with self._changed:
                lane.next_sequence += len(messages)
                lane.back_off_ms = BACK_OFF_MS
            self._finish(lane, None)
            self._report_stored(runs, tp.partition, offsets)

    def _was_away(self, lane: Lane, runs: list[PendingSend], error: StoreAwayError) -> None:
        now_ms = self._clock.monotonic_ms()
        may_be_stored = error.is_outcome_unknown or lane.repeated is not None
        expired, kept = self._divided(runs, now_ms)
        if kept:
            self._problem.report(error)
        with self._changed:
            lane.not_before_ms = now_ms + lane.back_off_ms
            lane.back_off_ms = min(lane.back_off_ms * 2, _MAX_BACK_OFF_MS)
            if may_be_stored and kept:
                # The batch is repeated as it is, or numbers would change; what is late is repeated with it.
                expired, repeated = [], runs
            else:
                repeated = None
                if may_be_stored:
                    lane.next_sequence += count_of(runs)
                self._take_back(lane, kept)
        self._finish(lane, repeated)
        what = f"could not send a message to {lane.topic_partition.topic}: {error}"
        self._report_failed(expired, what, is_retriable=True)

    def _divided(self, runs: Iterable[PendingSend], now_ms: float) -> tuple[list[PendingSend], list[PendingSend]]:
        """Messages that fail now, and those that are tried again."""
        expired: list[PendingSend] = []
        kept: list[PendingSend] = []
        for each in runs:
            is_given_up = each.deadline_ms <= now_ms or each.since_ms <= self._given_up_ms
            (expired if is_given_up or not self._tries_again else kept).append(each)
        return expired, kept

    def _take_back(self, lane: Lane, runs: Sequence[PendingSend]) -> None:
        """Messages that certainly were not stored wait again, first; those without a key where messages are taken."""
        routes, partition = self._routes[lane.topic_partition.topic], lane.topic_partition.partition
        is_away = not self._store.is_writable(lane.topic_partition)
        if is_away and routes.current == partition:
            routes.next_turn()
        is_elsewhere = is_away and routes.current != partition
        lane.put_back([run for run in runs if not (run.is_free and is_elsewhere)])
        for run in runs:
            if run.is_free and is_elsewhere:
                self._enqueue(run, routes)

    def _was_refused(self, lane: Lane, runs: list[PendingSend], error: BaseException) -> None:
        """Nothing was stored. What was refused fails; the others wait again, apart from what may be the cause."""
        place = error.place[1] if isinstance(error, StoreRefusedError) and error.place is not None else None
        count = count_of(runs)
        before: list[PendingSend] = []
        refused: list[PendingSend] = []
        after: list[PendingSend] = []
        if count == 1 or isinstance(error, TopicError):
            refused = runs
        elif place is not None:
            before, rest = cut_at(runs, place)
            refused, after = cut_at(rest, 1)
        else:
            before, after = cut_at(runs, count // 2)
        with self._changed:
            if lane.repeated is not None:
                lane.next_sequence += count
            if not refused and lane.waiting:
                lane.waiting[0].starts_batch = True
            if after:
                after[0].starts_batch = True
            lane.put_back([*before, *after])
        self._finish(lane, None)
        what = f"could not send a message to {lane.topic_partition.topic}: {error}"
        self._report_failed(refused, what)

    def _finish(self, lane: Lane, repeated: list[PendingSend] | None) -> None:
        with self._changed:
            lane.repeated = repeated
            lane.is_busy = False
            self._changed.notify_all()

    def _report_stored(self, runs: Sequence[PendingSend], partition: int, offsets: Sequence[int | None]) -> None:
        end = 0
        for run in runs:
            start, end = end, end + len(run.messages)
            try:
                run.report.stored(run.places, partition, offsets[start:end])
            except Exception:
                log.exception("a callback of a sent message raised")
        self._forget(runs)

    def _report_failed(self, runs: Sequence[PendingSend], what: str, *, is_retriable: bool = False) -> None:
        for run in runs:
            try:
                run.report.failed(run.places, SendError(what, is_retriable=is_retriable))
            except Exception:
                log.exception("a callback of a sent message raised")
        self._forget(runs)

    def _forget(self, runs: Sequence[PendingSend]) -> None:
        if runs:
            with self._changed:
                self._outstanding -= count_of(runs)
                self._outstanding_bytes -= sum(run.size_bytes for run in runs)
                self._changed.notify_all()
