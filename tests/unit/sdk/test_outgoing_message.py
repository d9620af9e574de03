"""From what an application says to the message that goes out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.sdk.errors import InvalidInputError
from penstock.sdk.ports import Outgoing
from penstock.sdk.send.outgoing_message import compose, compose_cancel, compose_rescheduled, is_for_later, moment_ms
from penstock.sdk.send.request_reply import ReplyToken, compose_reply

NOW_MS = 1_700_000_000_000


def test_nothing_said_means_no_headers() -> None:
    assert compose("t", b"v") == Outgoing("t", b"v")
    assert compose("t", None, key=None, headers={}, tags=[], delay=None, biz_id=None) == Outgoing("t", None)


def test_text_becomes_bytes_and_headers_keep_their_order() -> None:
    made = compose("t", "ü", key="k", headers=[("a", "1"), ("a", b"\xff"), ("b", None)])
    assert made == Outgoing("t", "ü".encode(), b"k", (("a", b"1"), ("a", b"\xff"), ("b", None)))


def test_extras_become_headers() -> None:
    made = compose("t", b"", delay=1.5, timer_id="id", tags=["x", "y z"], biz_id="7")
    assert dict(made.headers) == {
        "penstock-delay": b"1500",
        "penstock-timer-id": b"id",
        "penstock-tags": b"x,y z",
        "penstock-biz-id": b"7",
    }
    assert compose("t", b"", tags="one").headers == (("penstock-tags", b"one"),)
    assert compose("t", b"", delay="level:3").headers == (("penstock-delay", b"level:3"),)
    assert compose("t", b"", schedule="cron 0 9 * * 1-5 Europe/Zurich").headers == (
        ("penstock-schedule", b"cron 0 9 * * 1-5 Europe/Zurich"),
    )


def test_a_moment_is_milliseconds_since_1970_in_any_zone() -> None:
    zone = timezone(timedelta(hours=2))
    assert moment_ms("deliver_at", datetime(1970, 1, 1, 2, 0, 1, 999, tzinfo=zone)) == 1000
    assert compose("t", b"", deliver_at=datetime(2026, 1, 1, tzinfo=UTC)).headers == (
        ("penstock-deliver-at", b"1767225600000"),
    )
    assert compose("t", b"", timestamp=5).timestamp_ms == 5


def test_headers_of_ours_can_be_written_by_hand() -> None:
    assert compose("t", b"", headers={"penstock-delay": "5s"}).headers == (("penstock-delay", b"5s"),)


def test_only_what_waits_has_no_offset() -> None:
    assert is_for_later((("penstock-delay", b"0"),), NOW_MS)
    assert is_for_later((("penstock-cancel", b"id"),), NOW_MS)
    assert is_for_later((("penstock-deliver-at", str(NOW_MS + 1).encode()),), NOW_MS)
    assert not is_for_later((("penstock-deliver-at", str(NOW_MS).encode()),), NOW_MS)
    assert not is_for_later((("penstock-tags", b"a"),), NOW_MS)


def test_a_cancel_has_a_name_and_nothing_else() -> None:
    assert compose_cancel("t", "id", key="k", partition=None) == Outgoing(
        "t", None, b"k", (("penstock-cancel", b"id"),)
    )
    with pytest.raises(InvalidInputError, match="timer_id must be a text of 1 to 255 bytes, not ''"):
        compose_cancel("t", "", key=None, partition=None)


def test_to_reschedule_needs_a_time_and_one_name() -> None:
    made = compose_rescheduled("t", "id", b"v", {"delay": "1s"})
    assert dict(made.headers) == {"penstock-delay": b"1000", "penstock-timer-id": b"id"}
    with pytest.raises(InvalidInputError, match="needs a time"):
        compose_rescheduled("t", "id", b"v", {})
    with pytest.raises(InvalidInputError, match="passed twice"):
        compose_rescheduled("t", "id", b"v", {"delay": "1s", "timer_id": "other"})


def test_a_reply_token_survives_being_text() -> None:
    token = ReplyToken("penstock.replies", 3, "a/b")
    assert ReplyToken.parse(str(token)) == token
    assert compose_reply(str(token), "v") == Outgoing(
        "penstock.replies", b"v", headers=(("penstock-correlation", b"a/b"),), partition=3
    )
