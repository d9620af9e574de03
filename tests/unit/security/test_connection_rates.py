"""How fast connections are taken."""

from __future__ import annotations

import pytest

from penstock.security.connection_rates import ConnectionRates
from penstock.security.quota_entity import DEFAULT_NAME, QuotaEntity
from penstock.security.quota_keys import QuotaKey

KEY = QuotaKey.CONNECTION_CREATION_RATE


def test_without_a_bound_connections_are_taken_as_they_come() -> None:
    rates = ConnectionRates(0, 10)
    assert all(rates.pause_ms(0) == 0 and rates.delay_ms("10.0.0.1", 0) == 0 for _ in range(1000))


def test_the_broker_accepts_no_faster_than_it_is_told() -> None:
    rates, now_ms, accepted = ConnectionRates(100, 10), 0.0, 0
    while now_ms < 71_000:
        accepted += now_ms >= 11_000  # before that it takes what a new window allows at once
        now_ms += max(0.1, rates.pause_ms(now_ms))
    assert accepted / 60 == pytest.approx(100, rel=0.15)


def test_connections_of_an_address_wait_one_after_the_other_and_those_behind_are_closed() -> None:
    rates = ConnectionRates(0, 10)
    rates.follow({QuotaEntity(ip="10.0.0.1"): {KEY: 1.0}, QuotaEntity(ip=DEFAULT_NAME): {KEY: 2.0}})
    delays = [rates.delay_ms("10.0.0.1", 0) for _ in range(30)]
    assert delays[:10] == [0] * 10
    assert delays[10:21] == pytest.approx([1000 * (at + 1) for at in range(11)])
    assert delays[21:] == [None] * 9
    assert rates.delay_ms("10.0.0.2", 0) == 0
