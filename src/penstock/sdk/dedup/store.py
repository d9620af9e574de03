"""Deduplication by business id: at most one handling of an id succeeds within a window.

A store keeps, for each (group, business id), a claim with a lease or a mark that the id is done. `claim` is one atomic
step in every store:

| the store has             | claim returns      | afterwards the store has            |
|---------------------------|--------------------|-------------------------------------|
| nothing, or it has expired| `CLAIMED`          | the claim, until the lease ends     |
| a claim of the same token | `CLAIMED`          | the claim, with a new lease         |
| a claim of another token  | `ClaimedElsewhere` | the same as before                  |
| a done mark               | `DONE`             | the same, until the window ends     |

`complete` turns a claim into a done mark. It returns False if another token took over the claim. The claim of a crashed
process expires with its lease.
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
from penstock.sdk.validation import check_whole_number

DEFAULT_ENTRIES = 1_000_000
"""Of a `MemoryStore`."""


class ClaimResult(Enum):
    """The result of a claim, unless another consumer holds it."""

    CLAIMED = "claimed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ClaimedElsewhere:
    """Another consumer is handling the id; its lease ends after this time."""

    lease_left_ms: int


Claim = ClaimResult | ClaimedElsewhere


class StoreFullError(Exception):
    """The store has no room: all entries are claimed right now."""


class Store(Protocol):
    """Where claims are kept. Methods may block, and may raise anything if the store is unreachable."""

    def claim(self, group: str, biz_id: str, token: str, lease_ms: int) -> Claim:
        """Try to claim the id for this token."""
        ...

    def complete(self, group: str, biz_id: str, token: str, window_ms: int) -> bool:
        """Mark the id as done for `window_ms`; False if this token no longer holds the claim."""
        ...

    def release(self, group: str, biz_id: str, token: str) -> None:
        """Give up the claim; does nothing if this token does not hold it."""

    def extend(self, group: str, biz_id: str, token: str, lease_ms: int) -> bool:
        """Renew the lease from now; False if this token no longer holds the claim."""
        ...

    def close(self) -> None:
        """Close connections."""


_STORE = ("claim", "complete", "release", "extend", "close")


@dataclass(frozen=True, slots=True)
class Dedup:
    """Handle messages with the same business id once per group and window.

    Args:
        store: A `MemoryStore`, `SqlStore` or `RedisStore`.
        window: How long the store remembers an id after it was handled.

    Raises:
        InvalidInputError: The store or the window is invalid.

    Example:
        ```python
        dedup = penstock.Dedup(penstock.MemoryStore(), window="24h")
        ```
    """

    store: Store
    window: Duration = "24h"

    def __post_init__(self) -> None:
        if isinstance(self.store, type) or not all(callable(getattr(self.store, name, None)) for name in _STORE):
            raise InvalidInputError(
                f"dedup: store must be a MemoryStore(), SqlStore(url) or RedisStore(url), not {self.store!r}"
            )
        try:
            is_nothing = duration_ms(self.window) == 0
        except ValueError as error:
            raise InvalidInputError(f"dedup: window: {error}") from None
        if is_nothing:
            raise InvalidInputError("dedup: window must be longer than 0")

    @property
    def window_ms(self) -> int:
        """`window` in milliseconds."""
        return duration_ms(self.window)


@dataclass(slots=True)
class _StoredClaim:
    token: str | None
    """None: done."""
    until_ms: float


class MemoryStore:
    """Keeps business ids in memory, for one process.

    Args:
        entries: The largest number of ids. When full, the store forgets the oldest done ids first.
        clock: The clock for leases and windows; tests pass `stub.clock`.

    Raises:
        InvalidInputError: `entries` is not a positive whole number.
    """

    def __init__(self, entries: int = DEFAULT_ENTRIES, clock: Clock | None = None) -> None:
        check_whole_number("entries", entries, 1)
        self._entries = entries
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._done: OrderedDict[tuple[str, str], _StoredClaim] = OrderedDict()
        self._claims: dict[tuple[str, str], _StoredClaim] = {}

    def claim(self, group: str, biz_id: str, token: str, lease_ms: int) -> Claim:
        """Try to claim the id for this token; see `Store.claim`."""
        now_ms, key = self._clock.monotonic_ms(), (group, biz_id)
        with self._lock:
            done = self._done.get(key)
            if done is not None and done.until_ms > now_ms:
                return ClaimResult.DONE
            claimed = self._claims.get(key)
            if claimed is not None and claimed.token != token and claimed.until_ms > now_ms:
                return ClaimedElsewhere(round(claimed.until_ms - now_ms))
            self._make_room(now_ms)
            self._claims[key] = _StoredClaim(token, now_ms + lease_ms)
            return ClaimResult.CLAIMED

    def complete(self, group: str, biz_id: str, token: str, window_ms: int) -> bool:
        """Mark the id as done for `window_ms`; False if this token no longer holds the claim."""
        now_ms, key = self._clock.monotonic_ms(), (group, biz_id)
        with self._lock:
            if not self._is_of(key, token, now_ms):
                return False
            del self._claims[key]
            self._done.pop(key, None)
            self._done[key] = _StoredClaim(None, now_ms + window_ms)
            return True

    def release(self, group: str, biz_id: str, token: str) -> None:
        """Give up the claim; does nothing if this token does not hold it."""
        with self._lock:
            if self._is_of((group, biz_id), token, self._clock.monotonic_ms()):
                del self._claims[group, biz_id]

    def extend(self, group: str, biz_id: str, token: str, lease_ms: int) -> bool:
        """Renew the lease from now; False if this token no longer holds the claim."""
        now_ms, key = self._clock.monotonic_ms(), (group, biz_id)
        with self._lock:
            if not self._is_of(key, token, now_ms):
                return False
            self._claims[key].until_ms = now_ms + lease_ms
            return True

    def close(self) -> None:
        """Does nothing: there are no connections."""

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
            raise StoreFullError(f"the store is full: all {self._entries} entries are being handled")
