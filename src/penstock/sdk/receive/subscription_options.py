"""The options of a subscription: as an application passes them, and validated with durations in milliseconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Required, TypedDict, get_args

from penstock.durations import Duration, duration_ms
from penstock.sdk.dedup.store import Dedup
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.receive.retries import Retries
from penstock.sdk.send.outgoing_message import check_topic
from penstock.sdk.validation import check_flag, check_known, check_number, check_whole_number

Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]
"""The delivery guarantee of a subscription."""

CONCURRENCY = 1
DEADLINE = "5m"
_IN_FLIGHT = 100
_IN_FLIGHT_ORDERED = 1000
"""More, because messages that wait for their key count too."""
_CALLS_AHEAD = 4
"""At least this many calls of every handler are in flight."""
_MAX_IN_FLIGHT = 1_000_000
_MAX_CONCURRENCY = 10_000
_MAX_GROUP_CHARS = 249


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedOptions:
    """The validated options of one subscription; `validate_options` creates it."""

    topics: tuple[str, ...]
    group: str
    retries: Retries
    deadline_ms: int
    concurrency: int
    in_flight: int
    rate: float | None
    batch: int | None
    """None: the handler takes one message, not a list."""
    ordered: bool
    dedup: Dedup | None
    tags: str | None
    delivery: Delivery
    from_beginning: bool


def validate_options(
    topics: str | Sequence[str],
    *,
    group: str | None = None,
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
    from_beginning: bool = True,
    **unknown: object,
) -> ValidatedOptions:
    """Validate what `subscribe` was called with.

    Raises:
        InvalidInputError: An option is invalid; the text names it and says what to write.
    """
    names = _topics(topics)
    check_known("a subscription", unknown, SubscriptionOptions.__annotations__)
    _check_group(group, names[0])
    if retries is not None and not isinstance(retries, Retries):
        attempts = retries if isinstance(retries, int) and not isinstance(retries, bool) else 8
        raise InvalidInputError(
            f"retries must be a penstock.Retries, not {retries!r}: write penstock.Retries(attempts={attempts}); "
            "penstock.Retries(attempts=1) turns retries off"
        )
    if dedup is not None and not isinstance(dedup, Dedup):
        raise InvalidInputError(f"dedup must be a penstock.Dedup(store), not {dedup!r}")
    if delivery not in get_args(Delivery):
        raise InvalidInputError(f"delivery must be one of {', '.join(get_args(Delivery))}, not {delivery!r}")
    check_flag("ordered", ordered)
    check_flag("from_beginning", from_beginning)
    if delivery == "exactly-once" and ordered:
        raise InvalidInputError("ordered cannot be combined with exactly-once: a waiting key would block all others")
    if delivery == "exactly-once" and dedup is not None:
        raise InvalidInputError("dedup cannot be combined with exactly-once: its store is outside the transaction")
    if delivery == "at-most-once" and dedup is not None:
        raise InvalidInputError("dedup cannot be combined with at-most-once: a lost message would count as done")
    if tags is not None and (not isinstance(tags, str) or not tags.strip()):
        raise InvalidInputError(f"tags must be an expression such as 'checkout and not test', not {tags!r}")
    if rate is not None:
        check_number("rate", rate, "a number of messages per second above 0", lambda value: value > 0)
    check_whole_number("concurrency", concurrency, 1, _MAX_CONCURRENCY)
    if batch is not None:
        check_whole_number("batch", batch, 1, _MAX_IN_FLIGHT)
    per_round = concurrency * (batch or 1)
    if in_flight is None:
        in_flight = max(_CALLS_AHEAD * per_round, _IN_FLIGHT_ORDERED if ordered else _IN_FLIGHT)
    check_whole_number("in_flight", in_flight, 1, _MAX_IN_FLIGHT)
    try:
        deadline_ms = duration_ms(deadline)
    except ValueError as error:
        raise InvalidInputError(f"deadline: {error}") from None
    if deadline_ms == 0:
        raise InvalidInputError("deadline must be longer than 0")
    return ValidatedOptions(
        topics=names,
        group=str(group),
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


def _topics(topics: object) -> tuple[str, ...]:
    names = (topics,) if isinstance(topics, str) else topics
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise InvalidInputError(
            f"topics must be the name of a topic or a list of names, not {topics!r}: write "
            'subscribe("orders", group="billing")'
        )
    found = tuple(dict.fromkeys(names))
    if not found:
        raise InvalidInputError("topics is empty: name at least one topic")
    for topic in found:
        if isinstance(topic, str) and topic.startswith("^"):
            raise InvalidInputError(f"{topic!r} is a pattern: name the topics one by one")
        check_topic(topic)
    return found


def _check_group(group: object, topic: str) -> None:
    if group is None:
        raise InvalidInputError(
            f'group is missing: write subscribe("{topic}", group="..."); members of one group share the work, '
            "every group gets every message"
        )
    if not isinstance(group, str) or not 1 <= len(group) <= _MAX_GROUP_CHARS:
        raise InvalidInputError(f"group must be a name of 1 to {_MAX_GROUP_CHARS} characters, not {group!r}")


class SubscriptionOptions(TypedDict, total=False):
    """The options of `subscribe`. All but `group` are optional."""

    group: Required[str]
    """The consumer group. Each message goes to one member of each group."""
    retries: Retries | None
    """How often and when to retry a failed message. Default: `Retries()`."""
    deadline: Duration
    """A message that is not settled by then has failed. Default: `"5m"`."""
    concurrency: int
    """Handlers that run at the same time: threads, or tasks in `penstock.aio`. Default: 1."""
    in_flight: int | None
    """Messages received and not settled, at most. Default: 100 (1,000 with `ordered`), or four calls of every handler
    if that is more."""
    rate: float | None
    """Messages per second, at most. Default: no limit."""
    batch: int | None
    """Call the handler with a list of up to this many messages."""
    ordered: bool
    """Handle messages of one key one after the other; a failed one blocks only its key."""
    dedup: Dedup | None
    """Handle each business id once."""
    tags: str | None
    """A tag expression such as `"checkout and not test"`: receive only matching messages."""
    delivery: Delivery
    """`"at-least-once"` (default), `"at-most-once"` or `"exactly-once"`."""
    from_beginning: bool
    """Where a group without committed offsets starts: with the oldest message (default), or with messages sent after it
    first joined."""
