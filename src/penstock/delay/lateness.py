"""How late messages were delivered, counted in buckets.

A delivery has its entries in the order in which they were due, so a bucket is found by a search, not by looking at each
message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock.delay.entries import at_due, due_of

_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10_000, 60_000)


class Lateness:
    """Seconds between due and delivered, of all messages since the start."""

    def __init__(self) -> None:
        self.bounds: Sequence[float] = tuple(bound / 1000 for bound in _BOUNDS_MS)
        self.counts: list[int] = [0] * (len(_BOUNDS_MS) + 1)
        self.total = 0.0

    def count(self, entries: Sequence[bytes], now_ms: int) -> None:
        """These, which are in order, are delivered now."""
        end = len(entries)
        for bucket, bound_ms in enumerate(_BOUNDS_MS):
            # The last ones are the least late.
            start = bisect_right(entries, at_due(max(0, now_ms - bound_ms)), hi=end)
            self.counts[bucket] += end - start
            end = start
        self.counts[-1] += end
        self.total += (now_ms * len(entries) - sum(map(due_of, entries))) / 1000
