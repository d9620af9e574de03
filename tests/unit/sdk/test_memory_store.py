"""The dedup store in memory: its bound, and what is forgotten first."""

from __future__ import annotations

import pytest

from penstock.clock import ManualClock
from penstock.sdk.dedup.store import ClaimedElsewhere, ClaimResult, MemoryStore, StoreFullError
from penstock.sdk.errors import InvalidInputError


def test_the_oldest_that_is_done_is_forgotten_when_there_is_no_room() -> None:
    store = MemoryStore(entries=3, clock=ManualClock())
    for number in range(4):
        assert store.claim("g", f"{number}", "t", 1000) is ClaimResult.CLAIMED
        assert store.complete("g", f"{number}", "t", 1000)
    assert store.claim("g", "3", "t", 1000) is ClaimResult.DONE
    assert store.claim("g", "0", "t", 1000) is ClaimResult.CLAIMED


def test_what_is_claimed_is_never_forgotten_before_its_lease_ends() -> None:
    clock = ManualClock()
    store = MemoryStore(entries=2, clock=clock)
    store.claim("g", "a", "t", 1000)
    store.claim("g", "b", "t", 2000)
    with pytest.raises(StoreFullError):
        store.claim("g", "c", "t", 1000)
    clock.advance(1000)
    assert store.claim("g", "c", "t", 1000) is ClaimResult.CLAIMED
    assert store.claim("g", "b", "other", 1000) == ClaimedElsewhere(1000)


def test_leases_and_windows_end_to_the_millisecond() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.claim("g", "a", "one", 1000)
    clock.advance(999)
    assert store.claim("g", "a", "two", 1000) == ClaimedElsewhere(1)
    clock.advance(1)
    assert not store.complete("g", "a", "one", 1000)
    assert store.claim("g", "a", "two", 1000) is ClaimResult.CLAIMED
    assert store.complete("g", "a", "two", 500)
    clock.advance(499)
    assert store.claim("g", "a", "three", 1) is ClaimResult.DONE
    clock.advance(1)
    assert store.claim("g", "a", "three", 1) is ClaimResult.CLAIMED


def test_a_store_without_room_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="entries"):
        MemoryStore(entries=0)
