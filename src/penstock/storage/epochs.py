"""The leader epochs of a log: which epoch began at which offset.

A replica or a consumer asks where an epoch ended, to find out whether what it has is still part of the log (KIP-101,
KIP-320).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class EpochHistory:
    """Epoch starts, ascending in both epoch and offset."""

    def __init__(self, starts: list[EpochStart] | None = None) -> None:
        self._starts = starts or []

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        return tuple(self._starts)

    @property
    def latest(self) -> int | None:
        return self._starts[-1].epoch if self._starts else None

    def begin(self, epoch: int, offset: int) -> bool:
        """Notes that records from `offset` on are of `epoch`; False if that was known."""
        if epoch < 0 or (self._starts and self._starts[-1].epoch >= epoch):
            return False
        while self._starts and self._starts[-1].start_offset >= offset:
            self._starts.pop()
        self._starts.append(EpochStart(epoch, offset))
        return True

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(largest known epoch not above `epoch`, the offset at which it ended); (-1, -1) if that is not known.

        An epoch above all known ones is not known; one below all of them ended where the first known one began.
        """
        if not self._starts or epoch < 0 or epoch > self._starts[-1].epoch:
            return -1, -1
        above = bisect_right(self._starts, (epoch, 1 << 63))
        end = self._starts[above].start_offset if above < len(self._starts) else log_end
        return (self._starts[above - 1].epoch if above else epoch), end

    def epoch_at(self, offset: int) -> int:
        """The epoch that a record at `offset` is of; -1 if that is not known."""
        at = bisect_right(self._starts, offset, key=lambda start: start.start_offset) - 1
        return self._starts[at].epoch if at >= 0 else -1

    def trim(self, start_offset: int) -> bool:
        """Drops what lies wholly below the start of the log; True if something went."""
        before = len(self._starts)
        while len(self._starts) > 1 and self._starts[1].start_offset <= start_offset:
            self._starts.pop(0)
        if self._starts and self._starts[0].start_offset < start_offset:
            self._starts[0] = EpochStart(self._starts[0].epoch, start_offset)
        return len(self._starts) != before

    def cut(self, end_offset: int) -> bool:
        """Drops epochs that began at or behind a new, lower end of the log; True if something went."""
        before = len(self._starts)
        while self._starts and self._starts[-1].start_offset >= end_offset:
            self._starts.pop()
        return len(self._starts) != before

    def to_text(self) -> str:
        return "".join(f"{start.epoch} {start.start_offset}\n" for start in self._starts)

    @classmethod
    def from_text(cls, text: str) -> EpochHistory:
        """ValueError if the text is not an epochs file."""
        starts = []
        for line in text.splitlines():
            epoch, start_offset = map(int, line.split())
            starts.append(EpochStart(epoch, start_offset))
        for before, after in pairwise(starts):
            if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
                raise ValueError("leader epochs out of order")
        return cls(starts)
