"""Topics in memory, with the rules of a broker. They have the methods of the SDK's `Topics`.

Pure: the caller passes the time. The broker's own code parses delay headers and tag expressions.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from penstock.config.delay import DELAY_LEVELS, parse_levels
from penstock.config.view import VIEW_OF_SETTING, VIEW_TAGS_SETTING, parse_tags
from penstock.delay.delay_headers import DelayHeaderError, DelayRequest, DelayRules, parse_delay_headers
from penstock.recurrence import RecurrenceError
from penstock.sdk.backend import TopicShape
from penstock.sdk.errors import BufferFullError, InvalidInputError, SendError, TopicError
from penstock.sdk.headers import DELAY, DELIVER_AT, SCHEDULE, tags_of, without
from penstock.sdk.ports import Headers, Outgoing, Received
from penstock.views.tag_matcher import Matcher

MAX_MESSAGES = 1_000_000
"""The largest number of messages in all topics together, unless said otherwise."""

_RULES = DelayRules(levels_ms=parse_levels(DELAY_LEVELS.default))


@dataclass(eq=False, slots=True)
class PendingMessage:
    """A delayed message."""

    due_ms: int
    topic_partition: tuple[str, int]
    outgoing: Outgoing
    request: DelayRequest
    waits: bool = True
    """False once it was cancelled or replaced."""


@dataclass(frozen=True, slots=True)
class StubView:
    """A topic that shows the messages of another one whose tags match."""

    base: str
    matcher: Matcher

    def shows(self, headers: Headers) -> bool:
        return self.matcher.matches(frozenset(tag.encode() for tag in tags_of(headers)))


@dataclass(slots=True)
class MemoryLog:
    """The messages of a partition."""

    start: int = 0
    """The offset of the oldest message."""
    messages: list[Received] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.messages)

    def read(self, offset: int, max_count: int) -> list[Received]:
        begin = max(0, offset - self.start)
        return self.messages[begin : begin + max_count]

    def trim(self, to: int) -> int:
        """Forget what lies before an offset; how many messages that were."""
        count = min(max(0, to - self.start), len(self.messages))
        del self.messages[:count]
        self.start += count
        return count


@dataclass(slots=True)
class MemoryTopics:
    """All topics."""

    default_partitions: int = 1
    max_messages: int = MAX_MESSAGES
    _partitions: dict[str, list[MemoryLog]] = field(default_factory=dict)
    _settings: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _views: dict[str, StubView] = field(default_factory=dict)
    _due: list[tuple[int, int, PendingMessage]] = field(default_factory=list)
    _named: dict[tuple[str, int, bytes], PendingMessage] = field(default_factory=dict)
    _turns: count[int] = field(default_factory=count)
    _kept: int = 0

    def create(
        self, topic: str, partitions: int = -1, replicas: int = -1, config: Mapping[str, str] | None = None
    ) -> bool:
        """Create a topic, or a view if its settings say so; False if it exists."""
        if self.shape(topic) is not None:
            return False
        base = (config or {}).get(VIEW_OF_SETTING)
        if base is None:
            number = partitions if partitions > 0 else self.default_partitions
            self._partitions[topic] = [MemoryLog() for _ in range(number)]
            self._settings[topic] = dict(config or {})
            return True
        tags = (config or {}).get(VIEW_TAGS_SETTING, "")
        try:
            self._views[topic] = StubView(base, Matcher(parse_tags(tags)))
        except ValueError as error:
            raise InvalidInputError(f"could not create topic {topic}: tags {tags!r}: expected {error}") from None
        self._settings[topic] = dict(config or {})
        return True

    def settings(self, topic: str) -> Mapping[str, str]:
        """What a topic was created with."""
        self.partitions(topic)
        return self._settings[topic]

    def trim(self, topic: str, partition: int, to: int) -> None:
        """Forget the messages before an offset."""
        self._kept -= self._partitions[topic][partition].trim(to)

    def names(self) -> list[str]:
        """All topics that are no views."""
        return list(self._partitions)

    def shown_as(self, topic: str) -> list[str]:
        """A topic, and the views of it."""
        return [topic, *(name for name, view in self._views.items() if view.base == topic)]

    @property
    def is_full(self) -> bool:
        return self._kept >= self.max_messages

    def start_offset(self, topic: str, partition: int) -> int:
        return self._log(topic, partition).start

    def shape(self, topic: str) -> TopicShape | None:
        """None if the topic does not exist."""
        view = self._views.get(topic)
        found = self._partitions.get(topic if view is None else view.base)
        return None if found is None else TopicShape(len(found), 1)

    def partitions(self, topic: str) -> int:
        shape = self.shape(topic)
        if shape is None:
            raise TopicError(f"topic {topic} does not exist")
        return shape.partitions

    def messages(self, topic: str) -> tuple[Received, ...]:
        """All messages, partition by partition."""
        return tuple(
            message
            for partition in range(self.partitions(topic))
            for message in self.read(topic, partition, 0, MAX_MESSAGES)[0]
        )

    def pending(self, topic: str) -> tuple[PendingMessage, ...]:
        """Delayed messages by due time."""
        return tuple(each for _, _, each in sorted(self._due) if each.waits and each.topic_partition[0] == topic)

    def end_offset(self, topic: str, partition: int) -> int:
        return self._log(topic, partition).end

    def read(self, topic: str, partition: int, offset: int, max_count: int) -> tuple[Sequence[Received], int]:
        """Up to `max_count` messages from an offset on, and the next offset to read."""
        view, log = self._views.get(topic), self._log(topic, partition)
        offset = max(offset, log.start)
        if view is None:
            found = log.read(offset, max_count)
            return found, offset + len(found)
        shown: list[Received] = []
        while offset < log.end and len(shown) < max_count:
            message = log.messages[offset - log.start]
            if view.shows(message.headers):
                shown.append(replace(message, topic=topic))
            offset += 1
        return shown, offset

    def check(self, outgoing: Outgoing, now_ms: int) -> tuple[int, DelayRequest | None]:
        """The partition and the delay of a message. Raises `SendError` if a broker would refuse it."""
        if outgoing.topic in self._views:
            raise SendError(f"{outgoing.topic} accepts no messages: it is a view")
        if self.is_full:
            raise BufferFullError(f"the memory is full: it keeps {self.max_messages} messages", is_retriable=True)
        self.create(outgoing.topic)
        number = self.partitions(outgoing.topic)
        if outgoing.partition is not None and outgoing.partition >= number:
            raise SendError(f"topic {outgoing.topic} has no partition {outgoing.partition}: it has {number}")
        try:
            request = parse_delay_headers([(name.encode(), value) for name, value in outgoing.headers], now_ms, _RULES)
        except DelayHeaderError as error:
            raise SendError(f"could not send a message to {outgoing.topic}: {error}") from None
        return self._partition_of(outgoing, number), request

    def append(self, outgoing: Outgoing, now_ms: int) -> tuple[int, int | None]:
        """The partition and offset of a message; no offset if it is delayed."""
        partition, request = self.check(outgoing, now_ms)
        topic_partition = (outgoing.topic, partition)
        if request is None or not request.waits(now_ms):
            return partition, self._append(topic_partition, outgoing, now_ms)
        name = request.timer_id if request.cancels is None else request.cancels
        if name is not None and (replaced := self._named.pop((*topic_partition, name), None)) is not None:
            replaced.waits = False
            self._kept -= 1
        if request.cancels is None:
            self._wait(PendingMessage(request.due_ms, topic_partition, outgoing, request))
        return partition, None

    def next_due_ms(self) -> int | None:
        """When the next message is due."""
        while self._due and not self._due[0][2].waits:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def fire(self, now_ms: int) -> bool:
        """Deliver what is due, in the order of time and of sending; False if nothing was."""
        has_fired = False
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            pending = heapq.heappop(self._due)[2]
            self._kept -= 1
            if pending.request.timer_id is not None:
                self._named.pop((*pending.topic_partition, pending.request.timer_id), None)
            self._append(pending.topic_partition, _as_delivered(pending), now_ms)
            self._again(pending, now_ms)
            has_fired = True
        return has_fired

    def _append(self, topic_partition: tuple[str, int], outgoing: Outgoing, now_ms: int) -> int:
        topic, partition = topic_partition
        log = self._partitions[topic][partition]
        time_ms = now_ms if outgoing.timestamp_ms is None else outgoing.timestamp_ms
        offset = log.end
        log.messages.append(Received(topic, partition, offset, outgoing.value, outgoing.key, outgoing.headers, time_ms))
        self._kept += 1
        return offset

    def _log(self, topic: str, partition: int) -> MemoryLog:
        view = self._views.get(topic)
        return self._partitions[topic if view is None else view.base][partition]

    def _wait(self, pending: PendingMessage) -> None:
        heapq.heappush(self._due, (pending.due_ms, next(self._turns), pending))
        self._kept += 1
        if pending.request.timer_id is not None:
            self._named[(*pending.topic_partition, pending.request.timer_id)] = pending

    def _again(self, pending: PendingMessage, now_ms: int) -> None:
        if pending.request.recurrence is None:
            return
        try:
            due_ms = pending.request.recurrence.next_after(pending.due_ms, now_ms)
        except RecurrenceError:
            return
        self._wait(replace(pending, due_ms=due_ms))

    def _partition_of(self, outgoing: Outgoing, number: int) -> int:
        if outgoing.partition is not None:
            return outgoing.partition
        if outgoing.key is not None:
            return zlib.crc32(outgoing.key) % number
        return next(self._turns) % number


def _as_delivered(pending: PendingMessage) -> Outgoing:
    """The message as consumers receive it: a copy that is sent on must not be delayed again."""
    if not any(name in (DELAY, SCHEDULE) for name, _ in pending.outgoing.headers):
        return replace(pending.outgoing, timestamp_ms=None)
    due = (DELIVER_AT, str(pending.due_ms).encode())
    headers = _replaced(pending.outgoing.headers, (DELAY, SCHEDULE), due)
    return replace(pending.outgoing, headers=headers, timestamp_ms=None)


def _replaced(headers: Headers, names: Iterable[str], by: tuple[str, bytes]) -> Headers:
    return (*without(headers, names), by)
