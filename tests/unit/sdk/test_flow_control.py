"""Rate limit and in-flight limit of a subscription."""

from __future__ import annotations

from penstock.sdk.receive.flow_control import PAUSE_AFTER_MS, FlowDecision, InFlightLimit, RateLimit


def test_without_a_rate_everything_is_allowed() -> None:
    assert RateLimit(None, 0.0).allowed(0.0, 500) == 500


def test_no_more_are_allowed_than_the_rate_gives_in_any_second() -> None:
    rate, now_ms, taken = RateLimit(50, 0.0), 0.0, []
    while now_ms < 5000:
        count = rate.allowed(now_ms, 7)
        rate.take(count)
        taken += [now_ms] * count
        now_ms += 7
    # Of a burst at the beginning at most one allowance beyond the rate.
    for begin in range(0, 4000, 100):
        assert sum(begin <= at < begin + 1000 for at in taken) <= 56
    assert 245 <= len(taken) <= 256


def test_what_was_not_used_is_not_saved_up_for_ever() -> None:
    rate = RateLimit(1000, 0.0)
    assert rate.allowed(60_000, 10_000) == 100


def test_a_slow_rate_allows_one_at_a_time_and_says_when() -> None:
    rate = RateLimit(0.5, 0.0)
    assert rate.allowed(0.0, 3) == 1
    rate.take(1)
    assert rate.allowed(0.0, 3) == 0
    assert rate.wait_ms() == 2000
    assert rate.allowed(1999.0, 3) == 0
    assert rate.allowed(2000.0, 3) == 1


def test_a_full_subscription_waits_first_and_then_pauses() -> None:
    limit = InFlightLimit(10)
    assert limit.decide(9, 0) is FlowDecision.MORE
    assert limit.decide(10, 0) is FlowDecision.WAIT
    assert limit.decide(10, PAUSE_AFTER_MS - 1) is FlowDecision.WAIT
    assert limit.decide(10, PAUSE_AFTER_MS) is FlowDecision.PAUSE
    assert limit.decide(10, PAUSE_AFTER_MS + 1) is FlowDecision.KEEP


def test_room_within_the_wait_keeps_it_from_pausing() -> None:
    limit = InFlightLimit(10)
    assert limit.decide(10, 0) is FlowDecision.WAIT
    assert limit.decide(9, 400) is FlowDecision.MORE
    assert limit.decide(10, 401) is FlowDecision.WAIT
    assert limit.decide(10, 900) is FlowDecision.WAIT


def test_it_resumes_when_half_is_done() -> None:
    limit = InFlightLimit(10)
    limit.decide(10, 0)
    assert limit.decide(10, PAUSE_AFTER_MS) is FlowDecision.PAUSE
    assert limit.decide(6, 1000) is FlowDecision.KEEP
    assert limit.decide(5, 1000) is FlowDecision.RESUME
    assert limit.decide(5, 1000) is FlowDecision.MORE


def test_one_in_flight_takes_the_next_when_the_first_is_done() -> None:
    limit = InFlightLimit(1)
    assert limit.room(1) == 0
    assert limit.decide(1, 0) is FlowDecision.WAIT
    assert limit.decide(0, 10) is FlowDecision.MORE
    assert limit.room(0) == 1
