"""A small set of byte ranges, kept merged and bounded."""

from __future__ import annotations

from collections.abc import Iterator

_MAX_RANGES = 32


class Ranges:
    """Half-open ranges in ascending order; when there are too many the smallest is forgotten, which is always safe
    here.
    """

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def add(self, start: int, end: int) -> None:
        """Adds [start, end), merging what touches."""
        if start >= end:
            return
        kept = []
        for low, high in self._ranges:
            if high < start or low > end:
                kept.append((low, high))
            else:
                start, end = min(start, low), max(end, high)
        kept.append((start, end))
        kept.sort()
        if len(kept) > _MAX_RANGES:
            kept.remove(min(kept, key=lambda found: found[1] - found[0]))
        self._ranges = kept

    def remove(self, start: int, end: int) -> None:
        """Takes [start, end) out."""
        if start >= end:
            return
        kept = []
        for low, high in self._ranges:
            if low < start:
                kept.append((low, min(high, start)))
            if high > end:
                kept.append((max(low, end), high))
        self._ranges = [(low, high) for low, high in kept if low < high]

    def covers(self, start: int, end: int) -> bool:
        return any(low <= start and end <= high for low, high in self._ranges)
