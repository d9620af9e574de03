"""Until when a lease certainly holds for a broker that knows the tree up to some version of its clock.

A lease that is renewed proves that the session lives, not that the broker has read the latest commits: while it was cut
off, another leader may have been committed. So each renewal is noted with the version that the clock had then, and
counts only for a broker that has read the tree up to that version.
"""

from __future__ import annotations

import math
from collections import deque

_KEPT = 32
"""More than there are in one session time."""


class LeaseRenewals:
    """Those of one session, the latest last."""

    def __init__(self) -> None:
        self._renewals: deque[tuple[int, float]] = deque(maxlen=_KEPT)

    def note(self, clock: int, until_ms: float) -> None:
        """The session holds until then, and the tree was at this version when it was renewed, or after that."""
        self._renewals.append((clock, until_ms))

    def until_ms(self, seen: int) -> float:
        for clock, until_ms in reversed(self._renewals):
            if clock <= seen:
                return until_ms
        return -math.inf

    def forget(self) -> None:
        """The session is over."""
        self._renewals.clear()
