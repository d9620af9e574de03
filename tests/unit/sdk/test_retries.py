"""How often a message is tried, and how long is waited in between."""

from __future__ import annotations

import pytest

from penstock.sdk.errors import InvalidInputError
from penstock.sdk.message import Acknowledged, Failed, Rejected
from penstock.sdk.receive.disposition import Completed, DeadLettered, Retry, disposition_of
from penstock.sdk.receive.retries import Retries


def middle() -> float:
    return 0.5


def test_delays_double_up_to_the_cap() -> None:
    retries = Retries(first="1s", factor=2, cap="10s", attempts=9)
    assert [retries.delay_ms(failures, middle) for failures in range(1, 7)] == [1000, 2000, 4000, 8000, 10_000, 10_000]


def test_factor_one_waits_the_same_each_time() -> None:
    retries = Retries(first="3s", factor=1, attempts=5)
    assert {retries.delay_ms(failures, middle) for failures in range(1, 6)} == {3000}


def test_jitter_makes_a_delay_longer_or_shorter_by_its_part() -> None:
    retries = Retries(first="10s", jitter=0.2)
    assert retries.delay_ms(1, lambda: 0.0) == 8000
    assert retries.delay_ms(1, lambda: 1.0) == 12_000


def test_thousands_of_failures_still_wait_for_the_cap_only() -> None:
    assert Retries(cap="1h", attempts=100_000).delay_ms(99_999, middle) == 3_600_000


def test_it_is_over_after_as_many_deliveries_as_attempts() -> None:
    retries = Retries(attempts=3)
    assert [retries.is_over(failures) for failures in (1, 2, 3, 4)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"first": "soon"}, "first"),
        ({"cap": "-1s"}, "cap"),
        ({"factor": 0.5}, "factor"),
        ({"attempts": 0}, "attempts"),
        ({"jitter": 1.5}, "jitter"),
    ],
)
def test_what_cannot_be_used_is_named(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        Retries(**wrong)  # type: ignore[arg-type]


def test_an_acknowledged_message_is_done() -> None:
    assert disposition_of(Acknowledged(), 3, Retries(), middle) == Completed()


def test_a_failure_comes_again_after_the_delay_of_its_number() -> None:
    retries = Retries(first="1s", factor=2, attempts=8)
    assert disposition_of(Failed("ValueError: no"), 2, retries, middle) == Retry(3, "ValueError: no", 4000)


def test_the_last_attempt_ends_in_a_dead_letter_even_if_a_retry_was_asked_for() -> None:
    assert disposition_of(Failed("no", after_ms=5, is_requested=True), 2, Retries(attempts=3), middle) == DeadLettered(
        3, "no"
    )


def test_a_time_that_was_asked_for_is_kept() -> None:
    assert disposition_of(Failed("later", after_ms=77), 0, Retries(), middle) == Retry(1, "later", 77)


def test_what_could_not_be_tried_has_lost_no_attempt() -> None:
    assert disposition_of(Failed("busy", after_ms=9, counts_as_attempt=False), 7, Retries(attempts=8), middle) == Retry(
        7, "busy", 9
    )


def test_a_rejected_message_is_a_dead_letter_at_once() -> None:
    assert disposition_of(Rejected("no such customer"), 0, Retries(), middle) == DeadLettered(1, "no such customer")
