"""What can be said about the messages that somebody wants to see before they are due."""

from __future__ import annotations

from typing import TypedDict, Unpack

from penstock.sdk.errors import InvalidInputError
from penstock.sdk.send.composing import Moment, moment_ms
from penstock.sdk.waiting import Wanted


class TimersWanted(TypedDict, total=False):
    """Which messages `timers` gives; nothing said: the first 100 that are due."""

    timer_id: str | None
    """What waits under this name, whenever it is due. A name belongs to a partition, so there may be several."""
    due_from: Moment | None
    """Due then or later."""
    due_until: Moment | None
    """Due before."""
    limit: int
    """So many at most, the first due."""
    partition: int | None
    """Only what waits in this one."""


def wanted_of(topic: str, **said: Unpack[TimersWanted]) -> Wanted:
    """What was said, checked."""
    limit = said.get("limit", 100)
    if limit < 1:
        raise InvalidInputError(f"limit is {limit}: it is 1 or more")
    due_from, due_until = said.get("due_from"), said.get("due_until")
    return Wanted(
        topic,
        timer_id=said.get("timer_id"),
        from_ms=0 if due_from is None else moment_ms("due_from", due_from),
        until_ms=None if due_until is None else moment_ms("due_until", due_until),
        limit=limit,
        partition=said.get("partition"),
    )
