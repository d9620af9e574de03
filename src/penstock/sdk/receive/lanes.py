"""Who is next: messages without a lane as they come, those of a lane one after the other.

Pure: time is handed in. A lane is a key. Only the first of a lane can be taken, and the next one not before the first
is through. One that has to be tried again stays the first of its lane and comes back when it is due; everybody else
goes on. How many wait here is bounded by whoever adds: `in_flight` of the subscription.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """Items wait, are taken, and are through or come again."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, deque[T]] = {}
        """What is in each lane, the one that was taken included."""
        self._ready: deque[tuple[Hashable, T]] = deque()
        self._due: list[tuple[float, int, Hashable, T]] = []
        self._numbers = count()

    def __len__(self) -> int:
        """How many could be taken now."""
        return len(self._ready)

    def add(self, lane: Hashable, item: T) -> None:
        """A lane of None is no lane: its items do not wait for each other."""
        if lane is not None:
            behind = self._lanes.setdefault(lane, deque())
            behind.append(item)
            if len(behind) > 1:
                return
        self._ready.append((lane, item))

    def take(self, most: int) -> list[T]:
        return [self._ready.popleft()[1] for _ in range(min(most, len(self._ready)))]

    def through(self, lane: Hashable) -> None:
        """The one that was taken from this lane is done: the next one may go."""
        if lane is None:
            return
        behind = self._lanes[lane]
        behind.popleft()
        if behind:
            self._ready.append((lane, behind[0]))
        else:
            del self._lanes[lane]

    def again(self, lane: Hashable, item: T, due_ms: float) -> None:
        """The one that was taken comes again then; its lane waits for it."""
        heapq.heappush(self._due, (due_ms, next(self._numbers), lane, item))

    def wake(self, now_ms: float) -> None:
        """What is due may be taken."""
        while self._due and self._due[0][0] <= now_ms:
            _, _, lane, item = heapq.heappop(self._due)
            self._ready.append((lane, item))

    def next_due_ms(self) -> float | None:
        return self._due[0][0] if self._due else None

    def drop(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Forgets what waits and is unwanted; what was taken stays until it is `through`."""
        dropped = [item for _, item in self._ready if unwanted(item)]
        dropped += [item for _, _, _, item in self._due if unwanted(item)]
        heads = {id(item) for item in dropped}
        self._ready = deque((lane, item) for lane, item in self._ready if id(item) not in heads)
        self._due = [due for due in self._due if id(due[3]) not in heads]
        heapq.heapify(self._due)
        for lane, behind in list(self._lanes.items()):
            was_waiting = id(behind[0]) in heads
            # The first of a lane that was taken is no longer ours to drop.
            kept = deque(behind if was_waiting else list(behind)[1:])
            gone = [item for item in kept if unwanted(item)]
            dropped += [item for item in gone if id(item) not in heads]
            left = deque(item for item in kept if not unwanted(item))
            if not was_waiting:
                # It may be ready or due and wanted, or taken: either way it stays the first.
                left.appendleft(behind[0])
            elif left:
                self._ready.append((lane, left[0]))
            if left:
                self._lanes[lane] = left
            else:
                del self._lanes[lane]
        return dropped
