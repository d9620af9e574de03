"""What an endpoint's answer means."""

from __future__ import annotations

import pytest

from penstock.push.responses import (
    MOST_WAIT_MS,
    REJECTING,
    Accepted,
    Refused,
    RetryLater,
    outcome_of,
    parse_retry_after,
)

NOW_MS = 1_700_000_000_000


def answer(status: int, retry_after: str | None = None, text: str = "") -> object:
    return outcome_of(status, retry_after, text, REJECTING, NOW_MS)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_takes_the_message(status: int) -> None:
    assert answer(status) == Accepted()


@pytest.mark.parametrize("status", [100, 300, 400, 401, 404, 500, 502, 599, 700])
def test_everything_else_means_again(status: int) -> None:
    found = answer(status)
    assert isinstance(found, RetryLater)
    assert found.after_ms is None
    assert f"HTTP {status}" in found.reason


def test_a_status_that_rejects_is_final() -> None:
    assert answer(410, text="no such customer") == Refused("HTTP 410 Gone: no such customer")


def test_the_statuses_that_reject_can_be_chosen() -> None:
    assert outcome_of(409, None, "", frozenset({409}), NOW_MS) == Refused("HTTP 409 Conflict")
    assert isinstance(outcome_of(410, None, "", frozenset({422}), NOW_MS), RetryLater)


@pytest.mark.parametrize("status", [429, 503])
def test_an_endpoint_may_say_when(status: int) -> None:
    found = answer(status, "7")
    assert isinstance(found, RetryLater)
    assert found.after_ms == 7000


def test_other_statuses_may_not_say_when() -> None:
    found = answer(500, "7")
    assert isinstance(found, RetryLater)
    assert found.after_ms is None


def test_a_redirect_is_named_as_one() -> None:
    found = answer(302)
    assert isinstance(found, RetryLater)
    assert "redirects are not followed" in found.reason


def test_a_long_answer_is_cut_and_on_one_line() -> None:
    found = answer(500, text="a\nb " + "x" * 1000)
    assert isinstance(found, RetryLater)
    assert "\n" not in found.reason
    assert len(found.reason) < 300


@pytest.mark.parametrize(
    ("text", "after_ms"),
    [
        ("0", 0),
        (" 120 ", 120_000),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10_000),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MOST_WAIT_MS),
        ("9" * 30, MOST_WAIT_MS),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, after_ms: int | None) -> None:
    assert parse_retry_after(text, NOW_MS) == after_ms
