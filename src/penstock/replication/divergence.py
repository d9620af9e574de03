"""What a follower does with an answer of its leader: append, cut back, begin anew, or wait.

Pure. A follower asks for what is behind its end and says of which epoch its last record is; a leader whose log does not
have that record answers with the epoch, not above it, at which both logs may still agree, and where that ends. Cutting
back to there and asking again ends at the last record that both have. See `docs/internals/cluster.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import Code
from penstock.storage.epochs import EpochHistory


class Position(NamedTuple):
    """What a follower asks for."""

    offset: int
    last_epoch: int
    """Of its last record; -1 if it has none."""


class Divergence(NamedTuple):
    """Where the leader's log may still agree with the follower's."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Take the records as they are."""


@dataclass(frozen=True, slots=True)
class CutBack:
    """Drop everything from `end_offset` on."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class BeginAt:
    """Nothing of this log is left at the leader: drop all of it, and what is known of producers, and go on there."""

    start_offset: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again later: the leader is not ready, or one of the two has not heard of the latest leader."""

    reason: Code


Step = Append | CutBack | BeginAt | Wait


def position_of(epochs: EpochHistory, end_offset: int) -> Position:
    return Position(end_offset, epochs.epoch_at(end_offset - 1) if end_offset > 0 else -1)


def next_step(
    code: Code, divergence: Divergence | None, leader_start: int, asked: Position, epochs: EpochHistory
) -> Step:
    """What an answer to `asked` means for a log with these epochs."""
    if code is Code.OFFSET_OUT_OF_RANGE and asked.offset <= leader_start:
        return BeginAt(leader_start)
    if code is not Code.NONE:
        return Wait(code)
    if divergence is None:
        return Append()
    # Of the epoch that the leader names, or the one before it, both may have a different part.
    _, own_end = epochs.end_of(divergence.epoch, asked.offset)
    if own_end < 0:
        own_end = asked.offset
    cut = min(divergence.end_offset, own_end, asked.offset)
    return CutBack(max(cut, 0))


def is_out_of_range(asked: Position, start_offset: int, known_end: int) -> bool:
    """The leader's side: whether all that the follower has lies before our log, so that it cannot be compared.

    `known_end`: up to where its log was found to be ours in this epoch; -1 if it was not compared yet.
    """
    if asked.offset == start_offset:
        return asked.last_epoch >= 0 and known_end < asked.offset
    return asked.offset < start_offset


def diverges(asked: Position, epochs: EpochHistory, end_offset: int) -> Divergence | None:
    """The leader's side: whether the record before `asked` is ours, and if not, how far back to look."""
    if asked.last_epoch < 0:
        # It has no record to compare, yet may have come further than this log: all that it had is past retention.
        return Divergence(-1, end_offset) if asked.offset > end_offset else None
    epoch, end = epochs.end_of(asked.last_epoch, end_offset)
    if epoch < 0:
        return Divergence(-1, -1) if not epochs.starts else Divergence(epochs.starts[-1].epoch, end_offset)
    if epoch != asked.last_epoch or end < asked.offset:
        return Divergence(epoch, end)
    return None
