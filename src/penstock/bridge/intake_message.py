"""A message of the intake topic as what the bridge does with it: a row that waits, or a cancel. Pure.

A message that cannot be delayed is a row too: a dead letter that is due now, so that it is sent exactly once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from penstock.bridge.forwarded_message import TargetError, dead_letter, forwarded_headers, target_of
from penstock.config.delay import DELAY_LEVELS, NO_CAP, parse_levels
from penstock.delay.delay_headers import DelayHeaderError, DelayRules, parse_delay_headers
from penstock.sdk.headers import SCHEDULE, text_of
from penstock.sdk.ports import Headers, Received

TIMER_KEY_BYTES = 16
RUN = 256
"""Neighbouring offsets that round-robin puts into the same shard: rows are inserted many at a time."""

_RULES = DelayRules(NO_CAP, parse_levels(DELAY_LEVELS.default))


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message that is forwarded when it is due."""

    offset: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    """Without the due time."""
    deliver_at_ms: int | None
    """The due time that the producer requested; None in a dead letter."""
    timer_key: bytes | None = None
    schedule: str | None = None
    placed_as: tuple[str, bytes | None] | None = None
    """Of a dead letter that was due too late by the clock: the topic and timer by which it is stored, as if it
    were none. The clock goes on, and a message that is read again must go to the same place."""

    @property
    def size(self) -> int:
        names = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + names


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Removes the message that waits under a timer id."""

    offset: int
    topic: str
    timer_key: bytes


Entry = Waiting | Cancel


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeRules:
    """What the bridge accepts."""

    dead_topic: str
    target: str | None = None
    max_delay_ms: int | None = None
    has_schedules: bool = True
    """Whether the plan of tables can keep a message for as long as a schedule may ask for."""


def entry_of(received: Received, rules: IntakeRules, now_ms: int) -> Entry:
    """What a message asks for. A delay counts from its timestamp."""
    since_ms = now_ms if received.timestamp_ms is None else received.timestamp_ms
    try:
        topic, partition = target_of(received.headers, received.topic, rules.target)
        request = parse_delay_headers([(name.encode(), value) for name, value in received.headers], since_ms, _RULES)
    except (TargetError, DelayHeaderError) as error:
        return _dead_entry(received, rules.dead_topic, str(error))
    if request is not None and request.cancels is not None:
        return Cancel(offset=received.offset, topic=topic, timer_key=timer_key(topic, request.cancels))
    due_ms = since_ms if request is None else request.due_ms
    timer_id = None if request is None else request.timer_id
    key = None if timer_id is None else timer_key(topic, timer_id)
    schedule = text_of(received.headers, SCHEDULE)
    if (refusal := _refusal(schedule, due_ms, now_ms, rules)) is not None:
        return replace(_dead_entry(received, rules.dead_topic, refusal), placed_as=(topic, key))
    return Waiting(
        offset=received.offset,
        topic=topic,
        partition=partition,
        key=received.key,
        value=received.value,
        headers=forwarded_headers(received),
        deliver_at_ms=due_ms,
        timer_key=key,
        schedule=schedule,
    )


def _dead_entry(received: Received, dead_topic: str, reason: str) -> Waiting:
    letter = dead_letter(received, dead_topic, reason)
    return Waiting(
        offset=received.offset,
        topic=letter.topic,
        partition=None,
        key=letter.key,
        value=letter.value,
        headers=letter.headers,
        deliver_at_ms=None,
    )


def timer_key(topic: str, timer_id: bytes) -> bytes:
    return hashlib.sha256(topic.encode() + b"\0" + timer_id).digest()[:TIMER_KEY_BYTES]


def shard_of(entry: Entry, partition: int, shards: int, *, by_topic: bool) -> int:
    """The shard of an entry: the same however often it is read."""
    placed_as = entry.placed_as if isinstance(entry, Waiting) else None
    topic, key = placed_as or (entry.topic, entry.timer_key)
    if by_topic:
        return int.from_bytes(hashlib.sha256(topic.encode()).digest()[:8]) % shards
    if key is not None:
        return int.from_bytes(key[:8]) % shards
    return (entry.offset // RUN + partition) % shards


def _refusal(schedule: str | None, due_ms: int, now_ms: int, rules: IntakeRules) -> str | None:
    if schedule is not None and not rules.has_schedules:
        return f"the header {SCHEDULE} cannot be used: the tables of this bridge are used in turns"
    if rules.max_delay_ms is not None and due_ms - now_ms > rules.max_delay_ms:
        return (
            f"the message is due {due_ms - now_ms} ms from now: this bridge keeps messages for {rules.max_delay_ms} ms"
        )
    return None
