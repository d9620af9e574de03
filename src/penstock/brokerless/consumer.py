"""A member of a group on a store.

The polling thread of the subscription does everything: it sends heartbeats, decides with `assignment.decide` what to
claim and what to give back, reads, and commits. It polls whatever handlers do, so a member whose handlers are slow
keeps its partitions; one whose process is stopped loses them when its session is over, and cannot commit any more.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.brokerless.assignment import decide
from penstock.brokerless.store import (
    Claim,
    FencedClaimError,
    GroupClaims,
    GroupMember,
    GroupOffsets,
    QueueStore,
    StoreAwayError,
)
from penstock.clock import Clock, SystemClock
from penstock.config.view import VIEW_OF_SETTING, VIEW_TAGS_SETTING, parse_tags
from penstock.ids import TopicPartition
from penstock.sdk.errors import ClientError, TopicError
from penstock.sdk.headers import tags_of
from penstock.sdk.ports import RebalanceListener, Received
from penstock.sdk.problem_log import OngoingProblem
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.views.tag_matcher import Matcher

log = logging.getLogger(__name__)

SESSION_MS = 10_000
"""How long a member that sends no heartbeat stays in its group."""
HEARTBEAT_MS = 1_000
_REBALANCE_MS = 100
"""How soon a member looks again at a group that has not come to rest."""
_COMMIT_EVERY_MS = 1_000
_SHAPE_MS = 5_000
_READ_AHEAD, _MOST_READ_AHEAD = 500, 5_000
"""How many messages are read from a partition at a time, at least and at most: `in_flight` between these."""
_RETRY_MS = 500


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """What a transaction needs to commit offsets of a group."""

    group: str
    member: str
    epochs: Mapping[TopicPartition, int]


@dataclass(slots=True)
class _Owned:
    """A partition that this member reads."""

    source: TopicPartition
    """Where its messages are: itself, or the same partition of the topic that it is a view of."""
    matcher: Matcher | None
    epoch: int
    incarnation: str
    """Of the store that granted it."""
    position: int
    """The offset behind the last message that was returned."""
    fetched_to: int
    """Where to read on."""
    buffer: deque[Received] = field(default_factory=deque)
    stored: int | None = None
    """Settled, and to be committed."""
    committed: int | None = None
    is_paused: bool = False


class StoreGroupConsumer:
    """A `GroupConsumer` on a store."""

    def __init__(self, store: QueueStore, options: ValidatedOptions, clock: Clock | None = None) -> None:
        self._store = store
        self._options = options
        self._clock = clock or SystemClock()
        self._group = options.group
        self._read_ahead = min(max(_READ_AHEAD, options.in_flight), _MOST_READ_AHEAD)
        self._member = GroupMember(f"{options.group}-{uuid.uuid4().hex[:12]}", frozenset())
        self._listener: RebalanceListener | None = None
        self._partitions: dict[str, int] = {}
        self._views: dict[str, tuple[str, Matcher] | None] = {}
        """For each topic, what it is a view of."""
        self._owned: dict[TopicPartition, _Owned] = {}
        self._turn = 0
        self._heartbeat_at_ms = 0.0
        self._seen_ms = 0.0
        """When the store last confirmed the membership."""
        self._shapes_at_ms = 0.0
        self._commit_at_ms = 0.0
        self._answers: list[Callable[[], None]] = []
        """What a later `poll` has to tell of commits."""
        self._problem = OngoingProblem(
            log,
            f"group {self._group}: {store.address} does not answer; trying again",
            f"group {self._group}: {store.address} answers again",
            clock=self._clock,
        )

    def join(self, topics: Sequence[str], listener: RebalanceListener, *, from_end: Sequence[str] = ()) -> None:
        self._listener = listener
        self._member = GroupMember(self._member.name, frozenset(topics))
        try:
            self._read_shapes()
            self._begin_at_end(from_end)
        except StoreAwayError as error:
            raise TopicError(f"could not join group {self._group}: {error}") from None
        self._heartbeat_at_ms = 0.0

    def poll(self, max_count: int, timeout_s: float) -> Sequence[Received]:
        until_ms = self._clock.monotonic_ms() + timeout_s * 1000
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()
        try:
            self._keep_up()
            found = self._taken(max_count)
            if not found:
                self._read()
                found = self._taken(max_count)
            if not found and (left_s := (until_ms - self._clock.monotonic_ms()) / 1000) > 0:
                self._store.wait(self._awaited(), left_s)
                self._read()
                found = self._taken(max_count)
            self._problem.end()
            return found
        except (StoreAwayError, TopicError) as error:
            self._problem.report(error)
            self._lose_if_session_is_over()
            self._clock_wait(min(_RETRY_MS, max(0.0, until_ms - self._clock.monotonic_ms())))
            return []

    def pause(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(topic_partitions, is_paused=True)

    def resume(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(topic_partitions, is_paused=False)

    def position(self, tp: TopicPartition) -> int | None:
        owned = self._owned.get(tp)
        if owned is None:
            return None
        # Behind what is not shown, when everything that was read is returned.
        return owned.fetched_to if not owned.buffer else owned.position

    def store_offsets(self, positions: Mapping[TopicPartition, int]) -> None:
        for tp, position in positions.items():
            if (owned := self._owned.get(tp)) is not None:
                owned.stored = position

    def commit(self, positions: Mapping[TopicPartition, int], done: Callable[[bool], None]) -> None:
        is_committed = self._committed(positions)
        self._answers.append(lambda: done(is_committed))

    def seek_to_committed(self) -> bool:
        try:
            committed = self._store.committed(self._group, list(self._owned))
            for tp, owned in self._owned.items():
                self._seek(owned, committed.get(tp))
        except StoreAwayError as error:
            self._problem.report(error)
            return False
        return True

    def group_metadata(self) -> GroupMembership:
        return GroupMembership(
            self._group, self._member.name, {tp: owned.epoch for tp, owned in list(self._owned.items())}
        )

    def close(self) -> None:
        if self._listener is None:
            return
        try:
            self._give_up(list(self._owned))
            self._store.leave(self._group, self._member.name)
        except StoreAwayError as error:
            log.warning("group %s: could not leave: %s; others take over after %d ms", self._group, error, SESSION_MS)

    # Membership.

    def _keep_up(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._shapes_at_ms:
            self._read_shapes()
        if now_ms >= self._commit_at_ms:
            self._commit_at_ms = now_ms + _COMMIT_EVERY_MS
            self._commit_stored(list(self._owned))
        if now_ms >= self._heartbeat_at_ms:
            self._rebalance(now_ms)

    def _rebalance(self, now_ms: float) -> None:
        state = self._store.heartbeat(self._group, self._member, SESSION_MS)
        self._seen_ms = now_ms
        self._drop_lost(state)
        decision = decide(self._member.name, state, self._partitions)
        if decision.release:
            self._give_up(sorted(decision.release & self._owned.keys()))
        if decision.claim:
            self._take_over(sorted(decision.claim))
        is_at_rest = not decision.release and not decision.claim and self._is_complete(state)
        self._heartbeat_at_ms = now_ms + (HEARTBEAT_MS if is_at_rest else _REBALANCE_MS)

    def _is_complete(self, state: GroupClaims) -> bool:
        """Whether every partition has a member: until then the group is looked at more often."""
        return all(
            TopicPartition(topic, number) in state.claims
            for topic, count in self._partitions.items()
            for number in range(count)
        )

    def _drop_lost(self, state: GroupClaims) -> None:
        name = self._member.name
        lost = [tp for tp, owned in self._owned.items() if state.claims.get(tp) != Claim(name, owned.epoch)]
        self._forget_lost(lost)
        # Claims of an earlier try whose answer was lost.
        unknown = {
            tp: claim.epoch for tp, claim in state.claims.items() if claim.member == name and tp not in self._owned
        }
        if unknown:
            self._store.release(self._group, name, unknown)

    def _forget_lost(self, lost: Sequence[TopicPartition]) -> None:
        if lost:
            assert self._listener is not None
            for tp in lost:
                del self._owned[tp]
            self._listener.lost(lost)

    def _lose_if_session_is_over(self) -> None:
        """Gives up all partitions when the session has expired: another member may have claimed them, and the store
        cannot be asked.
        """
        if self._owned and self._clock.monotonic_ms() - self._seen_ms > SESSION_MS:
            self._forget_lost(list(self._owned))

    def _give_up(self, revoked: Sequence[TopicPartition]) -> None:
        """The listener settles what it can, what is settled is committed, and then others may claim."""
        assert self._listener is not None
        if not revoked:
            return
        self._listener.revoked(revoked)
        self._commit_stored(revoked)
        epochs = {tp: owned.epoch for tp in revoked if (owned := self._owned.pop(tp, None)) is not None}
        self._store.release(self._group, self._member.name, epochs)

    def _take_over(self, wanted: Sequence[TopicPartition]) -> None:
        assert self._listener is not None
        incarnation = self._store.incarnation
        granted = self._store.claim(self._group, self._member.name, wanted)
        for tp, grant in granted.items():
            source, matcher = self._source_of(tp)
            owned = _Owned(source, matcher, grant.epoch, incarnation, 0, 0, committed=grant.committed)
            self._owned[tp] = owned
            self._seek(owned, grant.committed)
        if granted:
            self._listener.assigned(sorted(granted))

    # Topics.

    def _read_shapes(self) -> None:
        for topic in self._member.topics:
            shape = self._store.topics.shape(topic)
            if shape is None:
                self._partitions.pop(topic, None)
                continue
            self._partitions[topic] = shape.partitions
            if topic not in self._views:
                self._views[topic] = self._view_of(topic)
        self._shapes_at_ms = self._clock.monotonic_ms() + _SHAPE_MS

    def _view_of(self, topic: str) -> tuple[str, Matcher] | None:
        settings = self._store.settings(topic)
        base = settings.get(VIEW_OF_SETTING)
        return None if base is None else (base, Matcher(parse_tags(settings.get(VIEW_TAGS_SETTING, ""))))

    def _source_of(self, tp: TopicPartition) -> tuple[TopicPartition, Matcher | None]:
        view = self._views.get(tp.topic)
        return (tp, None) if view is None else (TopicPartition(view[0], tp.partition), view[1])

    def _begin_at_end(self, topics: Sequence[str]) -> None:
        """Commit the ends of partitions that the group has never read, so that it misses nothing from then on."""
        tps = [TopicPartition(topic, number) for topic in topics for number in range(self._partitions.get(topic, 0))]
        if not tps:
            return
        committed = self._store.committed(self._group, tps)
        ends = {tp: self._store.bounds(self._source_of(tp)[0])[1] for tp in tps if tp not in committed}
        if ends:
            self._store.commit_initial(self._group, ends)

    # Reading.

    def _taken(self, max_count: int) -> list[Received]:
        """Messages that were read, of one partition after the other."""
        found: list[Received] = []
        tps = list(self._owned)
        for step in range(len(tps)):
            owned = self._owned[tps[(self._turn + step) % len(tps)]]
            count = 0 if owned.is_paused else min(len(owned.buffer), max_count - len(found))
            if count:
                found += [owned.buffer.popleft() for _ in range(count)]
                owned.position = found[-1].offset + 1
        self._turn += 1
        return found

    def _read(self) -> None:
        for tp, owned in self._owned.items():
            if owned.is_paused or owned.buffer:
                continue
            page = self._store.read(owned.source, owned.fetched_to, self._read_ahead)
            if owned.incarnation != self._store.incarnation:
                # The offset was one of what is gone; now other messages are there.
                self._forget_lost([tp for tp, each in self._owned.items() if each.incarnation == owned.incarnation])
                self._heartbeat_at_ms = 0.0
                return
            owned.fetched_to = page.next_offset
            shown = page.messages if owned.matcher is None else _matching(page.messages, owned.matcher, tp.topic)
            owned.buffer.extend(shown)

    def _awaited(self) -> Mapping[TopicPartition, int]:
        return {owned.source: owned.fetched_to for owned in self._owned.values() if not owned.is_paused}

    def _seek(self, owned: _Owned, committed: int | None) -> None:
        owned.position = owned.fetched_to = self._store.bounds(owned.source)[0] if committed is None else committed
        owned.buffer.clear()
        owned.stored = None

    def _set_paused(self, topic_partitions: Iterable[TopicPartition], *, is_paused: bool) -> None:
        for tp in topic_partitions:
            if (owned := self._owned.get(tp)) is not None:
                owned.is_paused = is_paused

    # Committing.

    def _commit_stored(self, topic_partitions: Sequence[TopicPartition]) -> None:
        positions = {
            tp: owned.stored
            for tp in topic_partitions
            if (owned := self._owned.get(tp)) is not None and owned.stored not in (None, owned.committed)
        }
        if positions:
            self._committed({tp: position for tp, position in positions.items() if position is not None})

    def _committed(self, positions: Mapping[TopicPartition, int]) -> bool:
        ours = {tp: position for tp, position in positions.items() if tp in self._owned}
        if len(ours) < len(positions):
            return False
        epochs = {tp: self._owned[tp].epoch for tp in ours}
        try:
            self._store.commit(GroupOffsets(self._group, self._member.name, ours, epochs))
        except FencedClaimError as error:
            log.warning("group %s: %s", self._group, error)
            self._heartbeat_at_ms = 0.0
            return False
        except ClientError as error:
            self._problem.report(error)
            return False
        for tp, position in ours.items():
            self._owned[tp].committed = position
        return True

    def _clock_wait(self, milliseconds: float) -> None:
        if milliseconds > 0:
            self._store.wait({}, milliseconds / 1000)


def _matching(messages: Sequence[Received], matcher: Matcher, view: str) -> list[Received]:
    return [
        replace(message, topic=view)
        for message in messages
        if matcher.matches(frozenset(tag.encode() for tag in tags_of(message.headers)))
    ]
