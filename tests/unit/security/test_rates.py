"""Rates as Kafka measures them."""

from __future__ import annotations

import pytest

from penstock.security.rates import SampledRate, TokenBucket


def test_a_window_that_has_begun_counts_as_ten_seconds() -> None:
    rate = SampledRate()
    rate.record(1000, 0)
    assert rate.measure(0) == 100
    assert rate.measure(500) == pytest.approx(1000 / 10.5)
    assert rate.measure(1000) == 100


def test_the_quota_of_ten_seconds_can_be_used_at_once() -> None:
    rate = SampledRate()
    rate.record(10_000, 0)
    assert rate.throttle_ms(1000, 0) == 0
    rate.record(1, 0)
    assert rate.throttle_ms(1000, 0) > 0


def test_the_throttle_time_brings_the_rate_back_to_the_limit() -> None:
    rate = SampledRate()
    rate.record(15_000, 0)
    # (1500 - 1000) / 1000 of ten seconds
    assert rate.throttle_ms(1000, 0) == pytest.approx(5000)


def test_a_steady_client_below_its_limit_is_never_throttled() -> None:
    rate = SampledRate()
    for now_ms in range(0, 60_000, 100):
        rate.record(99, now_ms)
        assert rate.throttle_ms(1000, now_ms) == 0


def test_a_client_that_waits_as_it_is_told_sends_at_its_limit() -> None:
    rate, now_ms, sent = SampledRate(), 0.0, 0
    while now_ms < 600_000:
        rate.record(5000, now_ms)
        sent += 5000
        now_ms += max(1.0, rate.throttle_ms(1000, now_ms))
    assert sent / now_ms * 1000 == pytest.approx(1000, rel=0.1)


def test_samples_older_than_the_window_are_forgotten() -> None:
    rate = SampledRate()
    rate.record(50_000, 0)
    assert rate.total(10_999) == 50_000
    assert rate.total(11_000) == 0
    assert rate.is_unused(11_000)


def test_what_is_taken_back_does_not_count() -> None:
    rate = SampledRate()
    rate.record(50_000, 0)
    rate.record(-50_000, 10)
    assert rate.measure(10) == 0


def test_a_bucket_begins_full_and_can_be_overdrawn_once() -> None:
    bucket = TokenBucket()
    assert bucket.tokens(2, 0) == 22
    bucket.take(100, 2, 0)
    assert bucket.tokens(2, 0) == -78
    assert bucket.throttle_ms(2, 0) == 39_000
    assert bucket.tokens(2, 39_000) == 0
    assert bucket.throttle_ms(2, 39_000) == 0


def test_a_bucket_holds_no_more_than_a_window() -> None:
    bucket = TokenBucket()
    bucket.take(5, 1, 0)
    assert bucket.tokens(1, 1_000_000) == 11


def test_a_bucket_is_forgotten_when_it_is_full_again() -> None:
    bucket = TokenBucket()
    bucket.take(12, 1, 0)
    assert not bucket.is_unused(11_999)
    assert bucket.is_unused(12_000)


def test_tokens_can_be_given_back() -> None:
    bucket = TokenBucket()
    bucket.take(5, 1, 0)
    bucket.take(-5, 1, 0)
    assert bucket.tokens(1, 0) == 11
