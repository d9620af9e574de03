"""How fast new replicas may be copied, as a matter of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.throttle import FULL_S, Throttle, draw, settle

RATE = 1_000
FULL = int(RATE * FULL_S)
PLENTY = 1 << 30


def throttle(rate: int | None = RATE) -> Throttle:
    return Throttle(lambda: rate)


def test_a_full_bucket_is_drawn_at_once_and_fills_with_time() -> None:
    limit = throttle()
    assert draw([limit], PLENTY, 1.0) == FULL
    assert draw([limit], PLENTY, 1.0) == 0
    assert limit.wait_s(PLENTY, 1.0) == FULL_S / 2
    assert draw([limit], PLENTY, 1.0 + FULL_S / 2) == FULL // 2
    assert draw([limit], PLENTY, 100.0) == FULL, "what nobody drew is not saved up"


def test_a_small_wish_does_not_wait_for_half_a_bucket() -> None:
    limit = throttle()
    draw([limit], PLENTY, 0.0)
    assert draw([limit], 10, 0.01) == 10


def test_what_was_not_needed_is_put_back() -> None:
    limit = throttle()
    drawn = draw([limit], PLENTY, 0.0)
    settle([limit], drawn, 0)
    assert draw([limit], PLENTY, 0.0) == FULL


def test_a_batch_that_was_larger_is_paid_for_later() -> None:
    limit = throttle()
    settle([limit], draw([limit], PLENTY, 0.0), FULL + RATE)
    assert draw([limit], PLENTY, 1.0) == 0
    assert draw([limit], PLENTY, 1.0 + FULL_S) == FULL


def test_no_limit_gives_all_and_none_gives_nothing() -> None:
    assert draw([throttle(None)], PLENTY, 0.0) == PLENTY
    assert throttle(None).wait_s(PLENTY, 0.0) == 0
    assert draw([throttle(0)], PLENTY, 100.0) == 0
    assert throttle(0).wait_s(PLENTY, 0.0) == float("inf")


def test_a_byte_a_second_is_a_byte_a_second() -> None:
    limit = throttle(1)
    assert [draw([limit], PLENTY, second) for second in (0.0, 0.5, 1.0, 2.0)] == [1, 0, 1, 1]


def test_of_two_limits_the_smaller_counts_and_both_are_drawn_from() -> None:
    wide, narrow = throttle(10 * RATE), throttle()
    assert draw([wide, narrow], PLENTY, 0.0) == FULL
    assert draw([wide], PLENTY, 0.0) == 9 * FULL
    assert draw([narrow], PLENTY, 0.0) == 0


def test_a_limit_counts_as_soon_as_it_is_set() -> None:
    rates: list[int | None] = [None]
    limit = Throttle(lambda: rates[-1])
    assert draw([limit], PLENTY, 0.0) == PLENTY
    rates.append(RATE)
    assert draw([limit], PLENTY, 0.0) == FULL
    rates.append(4 * RATE)
    assert draw([limit], PLENTY, FULL_S) == 4 * FULL


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(1, 5_000), st.floats(0.0, 1.0)), max_size=40),
)
def test_however_it_is_drawn_from_no_more_than_the_rate_passes(
    rate: int, draws: list[tuple[float, int, float]]
) -> None:
    limit, now, passed = throttle(rate), 0.0, 0
    for seconds, wanted, part in draws:
        now += seconds
        drawn = draw([limit], wanted, now)
        assert drawn <= wanted
        used = int(drawn * part)
        settle([limit], drawn, used)
        passed += used
        assert passed <= rate * now + max(1, rate * FULL_S) + 1
