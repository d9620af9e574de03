"""What headers ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delay.delay_headers import (
    NAMES,
    DelayHeaderError,
    DelayRequest,
    DelayRules,
    may_have_delay_headers,
    parse_delay_headers,
)
from penstock.durations import parse_duration

NOW = 1_700_000_000_000
RULES = DelayRules(levels_ms=(1000, 5000, 10_000))


def request(*headers: tuple[bytes, bytes | None], rules: DelayRules = RULES) -> DelayRequest | None:
    return parse_delay_headers(headers, NOW, rules)


def refusal(*headers: tuple[bytes, bytes | None], rules: DelayRules = RULES) -> str:
    with pytest.raises(DelayHeaderError) as caught:
        request(*headers, rules=rules)
    return str(caught.value)


def test_headers_of_others_ask_for_nothing() -> None:
    assert request((b"trace", b"1"), (b"penstock-tags", b"a,b"), (b"x", None)) is None


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [(b"1500", 1500), (b"250ms", 250), (b"30s", 30_000), (b"5m", 300_000), (b"2h", 7_200_000), (b"7d", 604_800_000)],
)
def test_a_delay_counts_from_now(text: bytes, delay_ms: int) -> None:
    assert request((b"penstock-delay", text)) == DelayRequest(NOW + delay_ms)


def test_a_level_is_a_delay_of_the_topic() -> None:
    assert request((b"penstock-delay", b"level:3")) == DelayRequest(NOW + 10_000)
    assert "levels 1 to 3" in refusal((b"penstock-delay", b"level:4"))
    assert "levels 1 to 3" in refusal((b"penstock-delay", b"level:0"))


def test_a_time_in_the_past_does_not_wait() -> None:
    found = request((b"penstock-deliver-at", b"5"))
    assert found == DelayRequest(5)
    assert not found.waits(NOW)


def test_what_concerns_others_waits_even_if_it_is_due() -> None:
    named = request((b"penstock-timer-id", b"a"))
    cancel = request((b"penstock-cancel", b"a"))
    assert named is not None and named.waits(NOW)
    assert cancel == DelayRequest(0, cancels=b"a") and cancel.waits(NOW)


@pytest.mark.parametrize("text", [b"", b"-5", b"5 m", b"1.5s", b"5w", b"soon", "٣".encode(), b"9" * 16, b"\xff"])
def test_a_delay_that_cannot_be_understood_names_its_header(text: bytes) -> None:
    assert "penstock-delay" in refusal((b"penstock-delay", text))


@pytest.mark.parametrize("text", [b"", b"-1", b"1e9", b"tomorrow", b"9" * 19, b"9" * 18])
def test_a_time_that_cannot_be_understood_names_its_header(text: bytes) -> None:
    assert "penstock-deliver-at" in refusal((b"penstock-deliver-at", text))


def test_a_header_without_a_value_is_refused() -> None:
    assert "penstock-cancel" in refusal((b"penstock-cancel", None))


def test_headers_that_contradict_each_other_are_refused() -> None:
    assert "does not go together" in refusal((b"penstock-delay", b"5s"), (b"penstock-deliver-at", b"5"))
    assert "does not go together" in refusal((b"penstock-cancel", b"a"), (b"penstock-timer-id", b"a"))
    assert "twice" in refusal((b"penstock-delay", b"5s"), (b"penstock-delay", b"5s"))


def test_a_cap_is_an_error_and_never_a_clamp() -> None:
    rules = DelayRules(max_ms=60_000)
    assert request((b"penstock-delay", b"60s"), rules=rules) == DelayRequest(NOW + 60_000)
    said = refusal((b"penstock-delay", b"60001"), rules=rules)
    assert "penstock-delay" in said and "penstock.delay.max.ms" in said
    assert "penstock-deliver-at" in refusal((b"penstock-deliver-at", b"%d" % (NOW + 60_001)), rules=rules)


def test_a_timer_id_has_a_bound() -> None:
    assert request((b"penstock-timer-id", b"x" * 255), (b"penstock-delay", b"1s")) == DelayRequest(
        NOW + 1000, b"x" * 255
    )
    assert "256 bytes" in refusal((b"penstock-timer-id", b"x" * 256))
    assert "0 bytes" in refusal((b"penstock-cancel", b""))


@given(st.integers(0, 10**12), st.sampled_from(["", "ms", "s", "m", "h", "d"]))
def test_a_duration_is_digits_and_a_unit(count: int, unit: str) -> None:
    factor = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[unit]
    assert parse_duration(f"{count}{unit}") == count * factor


@given(st.binary(max_size=20), st.sampled_from(sorted(NAMES)), st.binary(max_size=20))
def test_the_search_finds_every_header(before: bytes, name: bytes, behind: bytes) -> None:
    assert may_have_delay_headers(memoryview(before + name + behind))


@given(st.lists(st.tuples(st.sampled_from([*sorted(NAMES), b"other"]), st.none() | st.binary(max_size=12)), max_size=3))
def test_whatever_is_sent_is_a_wish_or_an_error_that_names_a_header(headers: list[tuple[bytes, bytes | None]]) -> None:
    try:
        found = parse_delay_headers(headers, NOW, RULES)
    except DelayHeaderError as error:
        assert any(name.decode() in str(error) for name in NAMES)
    else:
        assert (found is None) == all(name == b"other" for name, _ in headers)
