"""A queue that delivers messages of one key one after the other.

Pure: the caller passes the time. Only the first message of a key can be taken, and the next one only after the first is
finished. A message that is retried stays the first of its key and returns when it is due; other keys continue. The
subscription's `in_flight` bounds the size.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyOrderedQueue(Generic[T]):
    """Items wait, are taken, and are finished or retried."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, deque[T]] = {}
        """The items of each key, including the one that was taken."""
        self._ready: deque[tuple[Hashable, T]] = deque()
        self._due: list[tuple[float, int, Hashable, T]] = []
        self._numbers = count()

    def __len__(self) -> int:
        """How many items could be taken now."""
        return len(self._ready)

    def add(self, key: Hashable, item: T) -> None:
        """Items with the key None do not wait for each other."""
        if key is not None:
            waiting = self._by_key.setdefault(key, deque())
            waiting.append(item)
            if len(waiting) > 1:
                return
        self._ready.append((key, item))

    def take(self, max_count: int) -> list[T]:
        return [self._ready.popleft()[1] for _ in range(min(max_count, len(self._ready)))]

    def finish(self, key: Hashable) -> None:
        """The item that was taken for this key is done: the next one may go."""
        if key is None:
            return
        waiting = self._by_key[key]
        waiting.popleft()
        if waiting:
            self._ready.append((key, waiting[0]))
        else:
            del self._by_key[key]

    def retry_at(self, key: Hashable, item: T, due_ms: float) -> None:
        """The item that was taken returns at this time; its key waits for it."""
        heapq.heappush(self._due, (due_ms, next(self._numbers), key, item))

    def release_due(self, now_ms: float) -> None:
        """Make items that are due available."""
        while self._due and self._due[0][0] <= now_ms:
            _, _, key, item = heapq.heappop(self._due)
            self._ready.append((key, item))

    def next_due_ms(self) -> float | None:
        return self._due[0][0] if self._due else None

    def drop(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove waiting items that are unwanted; a taken item stays until `finish`."""
        dropped = [item for _, item in self._ready if unwanted(item)]
        dropped += [item for _, _, _, item in self._due if unwanted(item)]
        heads = {id(item) for item in dropped}
        self._ready = deque((key, item) for key, item in self._ready if id(item) not in heads)
        self._due = [due for due in self._due if id(due[3]) not in heads]
        heapq.heapify(self._due)
        for key, waiting in list(self._by_key.items()):
            was_waiting = id(waiting[0]) in heads
            # The first item of a key may be taken: then it cannot be dropped.
            kept = deque(waiting if was_waiting else list(waiting)[1:])
            gone = [item for item in kept if unwanted(item)]
            dropped += [item for item in gone if id(item) not in heads]
            left = deque(item for item in kept if not unwanted(item))
            if not was_waiting:
                # It is wanted, or taken: either way it stays the first.
                left.appendleft(waiting[0])
            elif left:
                self._ready.append((key, left[0]))
            if left:
                self._by_key[key] = left
            else:
                del self._by_key[key]
        return dropped
