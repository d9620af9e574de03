"""What an archiver does next: which offsets, by which tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.ids import TopicPartition
from penstock.pipeline.failure import DataLossError
from penstock.pipeline.lake.record_table import Anchor
from penstock.pipeline.topics.ranges import Range

FIRST_OFFSETS = 500_000
"""How far the first batch goes at most; the size of messages is not known yet."""
QUICK_S = 5.0
SLOW_S = 20.0

_LEAST_OFFSETS = 20_000
"""A task is not worth starting for fewer, if another can do them too."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a partition is archived."""

    topic_id: str
    watermark: int | None = None
    """The first offset that is not; None if nothing of it ever was."""
    anchor: Anchor | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A range for a task, and the record that has to lie before it."""

    range: Range
    anchor: Anchor | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """Pieces of one topic, in order."""

    topic: str
    pieces: tuple[OffsetRange, ...]

    @property
    def length(self) -> int:
        return sum(piece.range.length for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Next:
    """Where a partition is archived from, and what was lost before it."""

    piece: OffsetRange
    lost: int


def next_of(at: TopicPartition, progress: Progress, first: int, last: int, *, accepts_loss: bool) -> Next:
    """What of a log that holds `first` to `last` is to be archived."""
    done = progress.watermark
    if done is None:
        return Next(OffsetRange(Range(at.topic, progress.topic_id, at.partition, first, last)), 0)
    if last < done:
        raise DataLossError(
            f"{at} ends at {last}, but is archived up to {done}: its log was cut, and new records get old offsets"
        )
    if first > done and not accepts_loss:
        raise DataLossError(
            f"{at} begins at {first}, but is archived up to {done} only: {first - done} offsets were deleted before "
            "they were archived; --accept-loss goes on behind them"
        )
    start = max(first, done)
    anchor = progress.anchor if progress.anchor is not None and progress.anchor.offset >= first else None
    return Next(OffsetRange(Range(at.topic, progress.topic_id, at.partition, start, last), anchor), start - done)


def shortened(pieces: Iterable[OffsetRange], ends: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """Pieces up to these ends."""
    return [replace(piece, range=replace(piece.range, end=ends[piece.range.at])) for piece in pieces]


def next_limit(limit: int, took_s: float, most: int) -> int:
    """How far the batch goes that follows a full one: the fixed cost of a batch counts little, and an archiver that is
    killed loses only some seconds of work.
    """
    if took_s < QUICK_S:
        return min(most, 2 * limit)
    return max(1, limit // 2) if took_s > SLOW_S else limit


def tasks_for(pieces: Iterable[OffsetRange], parallelism: int) -> list[Task]:
    """Tasks of much the same length, as many as run at once: long pieces cut, short ones of a topic put together."""
    whole = sorted((piece for piece in pieces if piece.range.length > 0), key=lambda piece: piece.range.at)
    total = sum(piece.range.length for piece in whole)
    most = max(_LEAST_OFFSETS, -(-total // max(1, parallelism)))
    tasks: list[Task] = []
    waiting: list[OffsetRange] = []
    for piece in (part for each in whole for part in _cut(each, most)):
        length = sum(each.range.length for each in waiting)
        if waiting and (waiting[0].range.topic != piece.range.topic or length + piece.range.length > most):
            tasks.append(Task(waiting[0].range.topic, tuple(waiting)))
            waiting = []
        waiting.append(piece)
    if waiting:
        tasks.append(Task(waiting[0].range.topic, tuple(waiting)))
    return tasks


def _cut(piece: OffsetRange, most: int) -> list[OffsetRange]:
    whole = piece.range
    count = -(-whole.length // most)
    bounds = [whole.start + whole.length * number // count for number in range(count + 1)]
    # Only the first part follows on what was archived before.
    return [
        OffsetRange(replace(whole, start=bounds[number], end=bounds[number + 1]), piece.anchor if number == 0 else None)
        for number in range(count)
    ]
