"""Delayed messages that are not due yet, and which of them a caller asks for. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict, Unpack

from penstock.sdk.errors import InvalidInputError
from penstock.sdk.headers import SCHEDULE, TIMER_ID, text_of
from penstock.sdk.ports import Headers
from penstock.sdk.send.outgoing_message import PointInTime, check_topic, moment_ms
from penstock.sdk.validation import check_known, check_whole_number


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A delayed message that is not delivered yet."""

    topic: str
    """The topic that it waits in."""
    partition: int
    """The partition that it waits in."""
    due_ms: int
    """When the broker delivers it, in milliseconds since 1970; the next time if it repeats."""
    value: bytes | None
    """The payload."""
    key: bytes | None
    """The key."""
    headers: Headers
    """All headers, including those that delay it."""

    @property
    def timer_id(self) -> str | None:
        """The name by which it can be cancelled or replaced, or None."""
        return text_of(self.headers, TIMER_ID)

    @property
    def schedule(self) -> str | None:
        """When it repeats; None if the broker delivers it once."""
        return text_of(self.headers, SCHEDULE)


@dataclass(frozen=True, slots=True)
class TimerQuery:
    """Which delayed messages to read."""

    topic: str
    timer_id: str | None = None
    """All messages with this name, whenever they are due; otherwise those of the window."""
    from_ms: int = 0
    until_ms: int | None = None
    limit: int = 100
    partition: int | None = None


def select_timers(waiting: Iterable[WaitingMessage], query: TimerQuery) -> list[WaitingMessage]:
    """What a query asks for of all delayed messages of its topic, which are in the order of their due times."""
    found = [each for each in waiting if query.partition in (None, each.partition)]
    if query.timer_id is not None:
        return [each for each in found if each.timer_id == query.timer_id]
    until_ms = math.inf if query.until_ms is None else query.until_ms
    return [each for each in found if query.from_ms <= each.due_ms < until_ms][: query.limit]


class TimerFilters(TypedDict, total=False):
    """The filters of `timers`. Default: the first 100 messages that are due."""

    timer_id: str | None
    """Messages with this name, whenever they are due. Each partition can have one."""
    due_from: PointInTime | None
    """Due at this time or later."""
    due_until: PointInTime | None
    """Due before this time."""
    limit: int
    """The largest number of messages. Default: 100."""
    partition: int | None
    """Only messages in this partition."""


def timer_query(topic: str, **filters: Unpack[TimerFilters]) -> TimerQuery:
    """Validate filters. Raises `InvalidInputError`."""
    check_known("timers", filters, TimerFilters.__annotations__)
    check_topic(topic)
    limit = filters.get("limit", 100)
    check_whole_number("limit", limit, 1)
    if (partition := filters.get("partition")) is not None:
        check_whole_number("partition", partition, 0)
    if (timer_id := filters.get("timer_id")) is not None and (not isinstance(timer_id, str) or not timer_id):
        raise InvalidInputError(f"timer_id must be a non-empty text, not {timer_id!r}")
    due_from, due_until = filters.get("due_from"), filters.get("due_until")
    return TimerQuery(
        topic,
        timer_id=filters.get("timer_id"),
        from_ms=0 if due_from is None else moment_ms("due_from", due_from),
        until_ms=None if due_until is None else moment_ms("due_until", due_until),
        limit=limit,
        partition=filters.get("partition"),
    )
