"""Guessing passwords becomes slow."""

from __future__ import annotations

from penstock.security.failed_logins import FailedLogins


def test_each_failure_from_an_address_waits_longer_up_to_the_bound() -> None:
    failed = FailedLogins(0.1, 5.0, 100)
    delays = [failed.note("a", 0.0) for _ in range(100)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert delays[6:] == [5.0] * 94
    assert failed.note("b", 0.0) == 0.1


def test_time_without_failures_is_forgiven() -> None:
    failed = FailedLogins(0.1, 5.0, 100)
    for _ in range(3):
        failed.note("a", 0.0)
    assert failed.note("a", 60.0) == 0.4
    assert failed.note("a", 10_000.0) == 0.1


def test_the_table_has_a_bound() -> None:
    failed = FailedLogins(0.1, 5.0, 100)
    for number in range(1000):
        failed.note(str(number), 0.0)
    assert len(failed) == 100
