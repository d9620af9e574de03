"""Positions in a topic, as people name them, and the offset that each means in one partition. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Earliest:
    """The oldest record that is kept."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end: records that are appended from now on."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """One offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class LastRecords:
    """This many offsets before the end."""

    count: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record with this timestamp or a later one."""

    time_ms: int


Position = Earliest | Latest | AtOffset | LastRecords | AtTime


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """The offsets that a partition holds: `start` is the first, `end` is one past the last."""

    start: int
    end: int

    def clamp(self, offset: int) -> int:
        """The nearest offset in the range, or its end."""
        return min(max(offset, self.start), self.end)

    def offset_of(self, position: Position, offset_for_time: int | None) -> int:
        """The offset of a position; `offset_for_time` is the broker's answer for an `AtTime`, None if no record is
        that young.
        """
        match position:
            case Earliest():
                return self.start
            case Latest():
                return self.end
            case AtOffset(offset):
                return self.clamp(offset)
            case LastRecords(count):
                return self.clamp(self.end - count)
            case AtTime():
                return self.end if offset_for_time is None else offset_for_time
