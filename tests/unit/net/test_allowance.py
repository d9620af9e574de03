"""Memory for large requests, shared by all connections."""

from __future__ import annotations

from penstock.net.buffers import Allowance


def test_what_fits_is_granted_at_once() -> None:
    allowance = Allowance(100)
    assert allowance.take(60)
    assert allowance.take(40)
    assert not allowance.take(1)
    assert allowance.used == 100


def test_one_request_larger_than_everything_is_granted_when_nothing_else_is_out() -> None:
    allowance = Allowance(100)
    assert allowance.take(500)
    assert not allowance.take(1)


def test_those_who_wait_are_served_in_order_as_bytes_come_back() -> None:
    allowance, served = Allowance(100), []
    assert allowance.take(100)
    allowance.wait(50, 0, lambda count: served.append(("first", count)))
    allowance.wait(10, 0, lambda count: served.append(("second", count)))
    allowance.give_back(40)
    assert served == []  # the second would fit, but does not overtake
    allowance.give_back(20)
    assert served == [("first", 50), ("second", 10)]
    assert allowance.used == 100
    assert not allowance.is_short


def test_one_who_went_away_does_not_hold_up_those_behind_him() -> None:
    allowance = Allowance(100)
    served: list[object] = []

    def never(count: int) -> None:
        raise AssertionError("served although it went away")

    assert allowance.take(90)
    allowance.wait(50, 0, never)
    allowance.wait(10, 0, served.append)
    allowance.forget(never)
    assert served == [10]


def test_when_all_who_hold_some_wait_for_more_the_furthest_goes_on() -> None:
    allowance, served = Allowance(100), []
    assert allowance.take(60)
    assert allowance.take(40)
    allowance.wait(30, 40, lambda count: served.append("shorter"))
    assert served == []
    allowance.wait(30, 60, lambda count: served.append("furthest"))
    assert served == ["furthest"]
    assert allowance.used == 130  # beyond the limit by one request
    allowance.give_back(90)
    assert served == ["furthest", "shorter"]
