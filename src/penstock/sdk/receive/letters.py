"""Dead letters as people see them: which there are, which of them are meant, and what was done with them. Pure.

What is done with a letter is noted in its topic, in its partition, behind it: a note is a record without key and value
whose header `penstock-settled` says `resent 42` or `purged 42`. So the topic itself knows, and whoever reads it up to
its end knows too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from penstock.sdk.headers import SETTLED, Origin, failures_of, text_of
from penstock.sdk.message import Message
from penstock.sdk.ports import Outgoing, Received

_ID = re.compile(r"(\d{1,9})/(\d{1,18})", re.ASCII)
_NOTE = re.compile(r"([a-z]+) (\d{1,18})", re.ASCII)


class State(Enum):
    """What was done with a letter."""

    WAITING = "waiting"
    RESENT = "resent"
    PURGED = "purged"


@dataclass(frozen=True, slots=True, order=True)
class LetterId:
    """The place of a letter in its topic; people write `3/42`."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}/{self.offset}"


def parse_id(text: str) -> LetterId:
    """Raises ValueError."""
    match = _ID.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} names no dead letter: PARTITION/OFFSET such as 3/42 does")
    return LetterId(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter."""

    received: Received
    state: State

    @property
    def id(self) -> LetterId:
        return LetterId(self.received.partition, self.received.offset)

    @property
    def died_ms(self) -> int | None:
        """When it became a dead letter."""
        return self.received.timestamp_ms

    @property
    def origin(self) -> Origin:
        return Message(self.received).origin

    @property
    def attempts(self) -> int:
        return failures_of(self.received.headers)

    @property
    def error(self) -> str:
        return Message(self.received).error or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which letters are meant: those for which everything holds that is said."""

    ids: frozenset[LetterId] = frozenset()
    since_ms: int | None = None
    """Died then, or later."""
    until_ms: int | None = None
    """Died before."""
    error: str | None = None
    """Stands in the error, in capitals or not."""
    origin: str | None = None
    """TOPIC, TOPIC/PARTITION or TOPIC/PARTITION/OFFSET."""
    states: frozenset[State] = frozenset({State.WAITING})

    def matches(self, letter: Letter) -> bool:
        died_ms = letter.died_ms
        return (
            letter.state in self.states
            and (not self.ids or letter.id in self.ids)
            and (self.since_ms is None or (died_ms is not None and died_ms >= self.since_ms))
            and (self.until_ms is None or (died_ms is not None and died_ms < self.until_ms))
            and (self.error is None or self.error.casefold() in letter.error.casefold())
            and (self.origin is None or _is_from(letter.origin, self.origin))
        )


def _is_from(origin: Origin, wanted: str) -> bool:
    parts = wanted.split("/")
    return [origin.topic, str(origin.partition), str(origin.offset)][: len(parts)] == parts


def note_of(letter: LetterId, topic: str, state: State) -> Outgoing:
    """The record that says what was done with a letter."""
    said = f"{state.value} {letter.offset}"
    return Outgoing(topic, None, headers=((SETTLED, said.encode()),), partition=letter.partition)


class Notes:
    """What was done with which letters; everything else is waiting."""

    def __init__(self) -> None:
        self._states: dict[int, dict[int, State]] = {}

    def is_note(self, received: Received) -> bool:
        return text_of(received.headers, SETTLED) is not None

    def read(self, received: Received) -> None:
        """Takes in a note; one that cannot be understood says nothing."""
        match = _NOTE.fullmatch(text_of(received.headers, SETTLED) or "")
        if match is not None and match[1] in {state.value for state in State}:
            self.add(LetterId(received.partition, int(match[2])), State(match[1]))

    def add(self, letter: LetterId, state: State) -> None:
        self._states.setdefault(letter.partition, {})[letter.offset] = state

    def state_of(self, received: Received) -> State:
        return self._states.get(received.partition, {}).get(received.offset, State.WAITING)
