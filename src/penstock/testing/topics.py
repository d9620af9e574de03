"""Topics in memory: what a cluster would keep of them, with the rules of a broker and without its logs. They are asked
for and made as by the SDK's `Topics`.

Pure: time is handed in. What headers ask for, and which tags a view wants, is read by the broker's own code.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from penstock.config.delay import DELAY_LEVELS, parse_levels
from penstock.config.view import VIEW_OF_SETTING, VIEW_TAGS_SETTING, parse_tags
from penstock.delay.wishes import DelayRules, Wish, WishError, parse_wish
from penstock.recurrence import RecurrenceError
from penstock.sdk.errors import BufferFullError, SendError, TopicError
from penstock.sdk.headers import DELAY, DELIVER_AT, SCHEDULE, tags_of, without
from penstock.sdk.ports import Headers, Outgoing, Received
from penstock.sdk.topics import TopicShape
from penstock.views.matching import Matcher

MESSAGES = 1_000_000
"""So many are kept, all topics together."""

_RULES = DelayRules(levels_ms=parse_levels(DELAY_LEVELS.default))


@dataclass(eq=False, slots=True)
class Pending:
    """A message that waits for its time."""

    due_ms: int
    place: tuple[str, int]
    outgoing: Outgoing
    wish: Wish
    waits: bool = True
    """False once it was cancelled or replaced."""


@dataclass(frozen=True, slots=True)
class View:
    """A topic that shows what of another has certain tags."""

    base: str
    matcher: Matcher

    def shows(self, headers: Headers) -> bool:
        return self.matcher.matches(frozenset(tag.encode() for tag in tags_of(headers)))


@dataclass(slots=True)
class MemoryTopics:
    """All topics of a stub."""

    default_partitions: int = 1
    _partitions: dict[str, list[list[Received]]] = field(default_factory=dict)
    _views: dict[str, View] = field(default_factory=dict)
    _due: list[tuple[int, int, Pending]] = field(default_factory=list)
    _named: dict[tuple[str, int, bytes], Pending] = field(default_factory=dict)
    _turns: count[int] = field(default_factory=count)
    _kept: int = 0

    def make(
        self, topic: str, partitions: int = -1, replicas: int = -1, config: Mapping[str, str] | None = None
    ) -> bool:
        """Makes a topic, or a view if its settings say so; false if there is one already."""
        if self.shape(topic) is not None:
            return False
        base = (config or {}).get(VIEW_OF_SETTING)
        if base is None:
            number = partitions if partitions > 0 else self.default_partitions
            self._partitions[topic] = [[] for _ in range(number)]
            return True
        tags = (config or {}).get(VIEW_TAGS_SETTING, "")
        try:
            self._views[topic] = View(base, Matcher(parse_tags(tags)))
        except ValueError as error:
            raise TopicError(f"topic {topic} could not be made: tags {tags!r}: allowed is {error}") from None
        return True

    def shape(self, topic: str) -> TopicShape | None:
        """None if there is no such topic."""
        view = self._views.get(topic)
        found = self._partitions.get(topic if view is None else view.base)
        return None if found is None else TopicShape(len(found), 1)

    def partitions(self, topic: str) -> int:
        shape = self.shape(topic)
        if shape is None:
            raise TopicError(f"there is no topic {topic}")
        return shape.partitions

    def messages(self, topic: str) -> tuple[Received, ...]:
        """All that is there, partition by partition."""
        return tuple(
            message
            for partition in range(self.partitions(topic))
            for message in self.read(topic, partition, 0, MESSAGES)[0]
        )

    def pending(self, topic: str) -> tuple[Pending, ...]:
        """What waits, by due time."""
        return tuple(each for _, _, each in sorted(self._due) if each.waits and each.place[0] == topic)

    def end_offset(self, topic: str, partition: int) -> int:
        view = self._views.get(topic)
        return len(self._partitions[topic if view is None else view.base][partition])

    def read(self, topic: str, partition: int, offset: int, most: int) -> tuple[Sequence[Received], int]:
        """Up to so many messages from an offset on, and where the reader is then."""
        view = self._views.get(topic)
        log = self._partitions[topic if view is None else view.base][partition]
        if view is None:
            found = log[offset : offset + most]
            return found, offset + len(found)
        shown: list[Received] = []
        while offset < len(log) and len(shown) < most:
            if view.shows(log[offset].headers):
                shown.append(replace(log[offset], topic=topic))
            offset += 1
        return shown, offset

    def check(self, outgoing: Outgoing, now_ms: int) -> tuple[int, Wish | None]:
        """The partition and the time of a message that is sent; SendError if a broker would refuse it."""
        if outgoing.topic in self._views:
            raise SendError(f"{outgoing.topic} takes no messages: it is a view")
        if self._kept >= MESSAGES:
            raise BufferFullError(f"the stub keeps {MESSAGES} messages, and no more")
        self.make(outgoing.topic)
        number = self.partitions(outgoing.topic)
        if outgoing.partition is not None and outgoing.partition >= number:
            raise SendError(f"topic {outgoing.topic} has no partition {outgoing.partition}: it has {number}")
        try:
            wish = parse_wish([(name.encode(), value) for name, value in outgoing.headers], now_ms, _RULES)
        except WishError as error:
            raise SendError(f"a message to {outgoing.topic} was not sent: {error}") from None
        return self._partition_of(outgoing, number), wish

    def append(self, outgoing: Outgoing, now_ms: int) -> tuple[int, int | None]:
        """Its partition and its offset; none for what waits."""
        partition, wish = self.check(outgoing, now_ms)
        place = (outgoing.topic, partition)
        if wish is None or not wish.waits(now_ms):
            return partition, self._append(place, outgoing, now_ms)
        name = wish.timer_id if wish.cancels is None else wish.cancels
        if name is not None and (replaced := self._named.pop((*place, name), None)) is not None:
            replaced.waits = False
            self._kept -= 1
        if wish.cancels is None:
            self._wait(Pending(wish.due_ms, place, outgoing, wish))
        return partition, None

    def next_due_ms(self) -> int | None:
        """When something is due next."""
        while self._due and not self._due[0][2].waits:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def fire(self, now_ms: int) -> bool:
        """Delivers what is due, in the order of time and of sending; false if nothing was."""
        has_fired = False
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            pending = heapq.heappop(self._due)[2]
            self._kept -= 1
            if pending.wish.timer_id is not None:
                self._named.pop((*pending.place, pending.wish.timer_id), None)
            self._append(pending.place, _as_delivered(pending), now_ms)
            self._again(pending, now_ms)
            has_fired = True
        return has_fired

    def _append(self, place: tuple[str, int], outgoing: Outgoing, now_ms: int) -> int:
        topic, partition = place
        log = self._partitions[topic][partition]
        time_ms = now_ms if outgoing.timestamp_ms is None else outgoing.timestamp_ms
        log.append(Received(topic, partition, len(log), outgoing.value, outgoing.key, outgoing.headers, time_ms))
        self._kept += 1
        return len(log) - 1

    def _wait(self, pending: Pending) -> None:
        heapq.heappush(self._due, (pending.due_ms, next(self._turns), pending))
        self._kept += 1
        if pending.wish.timer_id is not None:
            self._named[(*pending.place, pending.wish.timer_id)] = pending

    def _again(self, pending: Pending, now_ms: int) -> None:
        if pending.wish.recurrence is None:
            return
        try:
            due_ms = pending.wish.recurrence.next_after(pending.due_ms, now_ms)
        except RecurrenceError:
            return
        self._wait(replace(pending, due_ms=due_ms))

    def _partition_of(self, outgoing: Outgoing, number: int) -> int:
        if outgoing.partition is not None:
            return outgoing.partition
        if outgoing.key is not None:
            return zlib.crc32(outgoing.key) % number
        return next(self._turns) % number


def _as_delivered(pending: Pending) -> Outgoing:
    """As consumers get it: a copy that is sent on must not be delayed once more."""
    if not any(name in (DELAY, SCHEDULE) for name, _ in pending.outgoing.headers):
        return replace(pending.outgoing, timestamp_ms=None)
    due = (DELIVER_AT, str(pending.due_ms).encode())
    headers = _replaced(pending.outgoing.headers, (DELAY, SCHEDULE), due)
    return replace(pending.outgoing, headers=headers, timestamp_ms=None)


def _replaced(headers: Headers, names: Iterable[str], by: tuple[str, bytes]) -> Headers:
    return (*without(headers, names), by)
