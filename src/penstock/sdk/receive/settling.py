"""What of a partition was handed out, what of it is settled, and what may therefore be committed.

Pure. Offsets are handed out in order, with gaps where nothing is given to anybody (compacted, aborted, delayed and
control records, records that a view leaves out). They are settled in any order. What may be committed is the offset
before which everything is settled.
"""

from __future__ import annotations

from collections import deque

AHEAD = 10_000
"""So many messages may be settled behind one that is not; then no more of the partition is handed out. They would be
delivered again if the process died."""


class Ledger:
    """One partition while it is ours. A partition that is lost and comes back has a new ledger."""

    def __init__(self) -> None:
        self.is_ours = True
        """False once the partition was given away: results count no more."""
        self._open: deque[int] = deque()
        """Handed out, in order, from the first that is not settled."""
        self._settled: set[int] = set()
        """Members of `_open` that are settled."""
        self._next: int | None = None
        """Behind the last that was handed out or passed over."""
        self._told: int | None = None
        """What `news` has said last."""

    @property
    def in_hand(self) -> int:
        """Handed out and not settled."""
        return len(self._open) - len(self._settled)

    @property
    def is_far_ahead(self) -> bool:
        return len(self._settled) >= AHEAD

    def fits(self, offset: int) -> bool:
        """False if the reader has gone back, as it does when somebody resets the group, or the log was cut."""
        return self._next is None or offset >= self._next

    def hand_out(self, offset: int) -> None:
        assert self.fits(offset), "offsets are handed out in order"
        self._open.append(offset)
        self._next = offset + 1

    def settle(self, offset: int) -> None:
        """Once for each offset."""
        self._settled.add(offset)
        while self._open and self._open[0] in self._settled:
            self._settled.discard(self._open.popleft())

    def pass_over(self, position: int) -> None:
        """The reader is there: what lies between is given to nobody."""
        if self._next is None or position > self._next:
            self._next = position

    @property
    def committable(self) -> int | None:
        """Everything before it is settled; None if nothing is known of the partition yet."""
        return self._open[0] if self._open else self._next

    def news(self) -> int | None:
        """What may be committed, if that is more than what was told before."""
        position = self.committable
        if position is None or position == self._told:
            return None
        self._told = position
        return position
