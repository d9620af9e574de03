"""At most one handling of a business id succeeds: who has claimed it, and who has done it.

A store keeps, for each (group, business id), either a claim with a lease or a mark that it is done. Every store does
the same in one atomic step:

| what is kept             | claim gives | and then there is                     |
|--------------------------|-------------|---------------------------------------|
| nothing, or it has ended | `CLAIMED`   | the claim, until the lease ends       |
| a claim of the same token| `CLAIMED`   | the claim, with a new lease           |
| a claim of another token | `Busy`      | what was there                        |
| done                     | `DONE`      | what was there, until the window ends |

`complete` turns a claim of ours into done, for a window. It is false if the claim was lost: then somebody else has it.
A process that dies leaves a claim that ends with its lease.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from penstock.clock import Clock, SystemClock
from penstock.durations import Duration, duration_ms
from penstock.sdk.errors import InvalidInputError

ENTRIES = 1_000_000
"""Of a store in memory."""


class Outcome(Enum):
    """What a claim comes to."""

    CLAIMED = "claimed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else is handling it; their lease ends after that."""

    left_ms: int


Claim = Outcome | Busy


class StoreFullError(Exception):
    """No entry can be forgotten to make room: all are claimed right now."""


class Store(Protocol):
    """Where claims are kept. Calls may block; they may raise anything if the store is away."""

    def claim(self, group: str, biz_id: str, token: str, lease_ms: int) -> Claim:
        """Tries to get the id for this token."""
        ...

    def complete(self, group: str, biz_id: str, token: str, window_ms: int) -> bool:
        """The id is done for so long; false if it is not this token's any more."""
        ...

    def release(self, group: str, biz_id: str, token: str) -> None:
        """The id is free again; nothing happens if it is not this token's."""

    def extend(self, group: str, biz_id: str, token: str, lease_ms: int) -> bool:
        """The lease ends so long from now; false if it is not this token's any more."""
        ...

    def close(self) -> None:
        """Lets go of connections."""


@dataclass(frozen=True, slots=True)
class Dedup:
    """Messages with the same `penstock-biz-id` are handled once within the window, by the group."""

    store: Store
    window: Duration = "24h"

    def __post_init__(self) -> None:
        try:
            is_nothing = duration_ms(self.window) == 0
        except ValueError as error:
            raise InvalidInputError(f"dedup: window: {error}") from None
        if is_nothing:
            raise InvalidInputError("dedup: a window of 0 remembers nothing")

    @property
    def window_ms(self) -> int:
        return duration_ms(self.window)


@dataclass(slots=True)
class _Kept:
    token: str | None
    """None: done."""
    until_ms: float


class MemoryStore:
    """For one process. The oldest are forgotten when there are more than `entries`, done ones before claims."""

    def __init__(self, entries: int = ENTRIES, clock: Clock | None = None) -> None:
        if entries < 1:
            raise InvalidInputError(f"entries is {entries}: it is 1 or more")
        self._entries = entries
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._done: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._claims: dict[tuple[str, str], _Kept] = {}

    def claim(self, group: str, biz_id: str, token: str, lease_ms: int) -> Claim:
        now_ms, key = self._clock.monotonic_ms(), (group, biz_id)
        with self._lock:
            done = self._done.get(key)
            if done is not None and done.until_ms > now_ms:
                return Outcome.DONE
            claimed = self._claims.get(key)
            if claimed is not None and claimed.token != token and claimed.until_ms > now_ms:
                return Busy(round(claimed.until_ms - now_ms))
            self._make_room(now_ms)
            self._claims[key] = _Kept(token, now_ms + lease_ms)
            return Outcome.CLAIMED

    def complete(self, group: str, biz_id: str, token: str, window_ms: int) -> bool:
        now_ms, key = self._clock.monotonic_ms(), (group, biz_id)
        with self._lock:
            if not self._is_of(key, token, now_ms):
                return False
            del self._claims[key]
            self._done.pop(key, None)
            self._done[key] = _Kept(None, now_ms + window_ms)
            return True

    def release(self, group: str, biz_id: str, token: str) -> None:
        with self._lock:
            if self._is_of((group, biz_id), token, self._clock.monotonic_ms()):
                del self._claims[group, biz_id]

    def extend(self, group: str, biz_id: str, token: str, lease_ms: int) -> bool:
        now_ms, key = self._clock.monotonic_ms(), (group, biz_id)
        with self._lock:
            if not self._is_of(key, token, now_ms):
                return False
            self._claims[key].until_ms = now_ms + lease_ms
            return True

    def close(self) -> None:
        pass

    def _is_of(self, key: tuple[str, str], token: str, now_ms: float) -> bool:
        claimed = self._claims.get(key)
        return claimed is not None and claimed.token == token and claimed.until_ms > now_ms

    def _make_room(self, now_ms: float) -> None:
        while self._done and next(iter(self._done.values())).until_ms <= now_ms:
            self._done.popitem(last=False)
        if len(self._done) + len(self._claims) < self._entries:
            return
        if self._done:
            self._done.popitem(last=False)
            return
        for key in [key for key, claimed in self._claims.items() if claimed.until_ms <= now_ms]:
            del self._claims[key]
        if len(self._claims) >= self._entries:
            raise StoreFullError(f"{self._entries} business ids are being handled: the store has no room for more")
