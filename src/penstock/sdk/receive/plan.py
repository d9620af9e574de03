"""What a subscription was asked for: checked once, with durations in milliseconds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from penstock.durations import Duration, duration_ms
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.receive.dedup import Dedup
from penstock.sdk.receive.retries import Retries

Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]

CONCURRENCY = 1
DEADLINE = "5m"
_IN_HAND = 100
_IN_HAND_ORDERED = 1000
"""More, because those behind a key that has to wait are in hand too."""
_ROUNDS_AHEAD = 4
"""So many calls of every handler are in hand, if that is more."""
_MOST_IN_FLIGHT = 1_000_000
_MOST_CONCURRENCY = 10_000
_GROUP_CHARS = 249


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One subscription; `plan_of` makes it of what an application says."""

    topics: tuple[str, ...]
    group: str
    retries: Retries
    deadline_ms: int
    concurrency: int
    in_flight: int
    rate: float | None
    batch: int | None
    """None: the handler gets one message, not a list."""
    ordered: bool
    dedup: Dedup | None
    tags: str | None
    delivery: Delivery
    from_beginning: bool


def plan_of(
    topics: str | Sequence[str],
    *,
    group: str,
    retries: Retries | None = None,
    deadline: Duration = DEADLINE,
    concurrency: int = CONCURRENCY,
    in_flight: int | None = None,
    rate: float | None = None,
    batch: int | None = None,
    ordered: bool = False,
    dedup: Dedup | None = None,
    tags: str | None = None,
    delivery: Delivery = "at-least-once",
    from_beginning: bool = False,
) -> Plan:
    """Raises InvalidInputError that names what cannot be used."""
    named = (topics,) if isinstance(topics, str) else tuple(topics)
    if not named or not all(named):
        raise InvalidInputError("topics: at least one name is needed, and none may be empty")
    if not 1 <= len(group) <= _GROUP_CHARS:
        raise InvalidInputError(f"group: a name of 1 to {_GROUP_CHARS} characters is needed")
    if delivery not in get_args(Delivery):
        raise InvalidInputError(f"delivery is {delivery!r}: allowed are {', '.join(get_args(Delivery))}")
    if delivery == "exactly-once" and ordered:
        raise InvalidInputError("ordered does not go together with exactly-once: a key that waits would hold up all")
    if delivery == "exactly-once" and dedup is not None:
        raise InvalidInputError("dedup does not go together with exactly-once: its store is outside the transaction")
    if delivery == "at-most-once" and dedup is not None:
        raise InvalidInputError("dedup does not go together with at-most-once: what is lost would count as done")
    if tags is not None and not tags.strip():
        raise InvalidInputError("tags: the expression is empty")
    if rate is not None and not rate > 0:
        raise InvalidInputError(f"rate is {rate}: it is more than 0 messages a second")
    _check("concurrency", concurrency, _MOST_CONCURRENCY)
    if batch is not None:
        _check("batch", batch, _MOST_IN_FLIGHT)
    at_once = concurrency * (batch or 1)
    if in_flight is None:
        in_flight = max(_ROUNDS_AHEAD * at_once, _IN_HAND_ORDERED if ordered else _IN_HAND)
    _check("in_flight", in_flight, _MOST_IN_FLIGHT)
    try:
        deadline_ms = duration_ms(deadline)
    except ValueError as error:
        raise InvalidInputError(f"deadline: {error}") from None
    if deadline_ms == 0:
        raise InvalidInputError("deadline: 0 leaves no time for the handler")
    return Plan(
        topics=named,
        group=group,
        retries=retries or Retries(),
        deadline_ms=deadline_ms,
        concurrency=concurrency,
        in_flight=in_flight,
        rate=rate,
        batch=batch,
        ordered=ordered,
        dedup=dedup,
        tags=tags,
        delivery=delivery,
        from_beginning=from_beginning,
    )


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise InvalidInputError(f"{name} is {value}: it is from 1 to {most}")
