"""How a record is shown."""

from __future__ import annotations

import base64
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.formats import DisplayedRecord, parse_format, readable, time_text

RECORD = DisplayedRecord(
    topic="orders",
    partition=2,
    offset=42,
    timestamp_ms=1_700_000_000_123,
    key=b"k1",
    value="größe".encode(),
    headers=[("trace", b"abc"), ("none", None)],
)


def test_a_line_shows_place_time_key_value_and_headers() -> None:
    assert parse_format("line")(RECORD) == ("orders-2 @42 2023-11-14T22:13:20.123Z k1: größe {trace=abc, none=}")


def test_a_line_leaves_out_what_is_absent_and_marks_a_null_value() -> None:
    bare = dataclasses.replace(RECORD, key=None, value=None, headers=(), timestamp_ms=None)
    assert parse_format("line")(bare) == "orders-2 @42 <null>"


def test_a_pattern_puts_each_letter_in_its_place() -> None:
    shown = parse_format(r"%t %p %o [%k] %v %T {%h} 100%%\t%o\\ \q")(RECORD)
    assert shown == ("orders 2 42 [k1] größe 2023-11-14T22:13:20.123Z {trace=abc, none=} 100%\t42\\ \\q")


def test_a_null_key_is_nothing_in_a_pattern() -> None:
    assert parse_format("[%k]")(dataclasses.replace(RECORD, key=None)) == "[]"


@pytest.mark.parametrize("text", ["lines", "", "%x", "%", "100 plain"])
def test_an_unknown_format_is_refused_with_the_letters(text: str) -> None:
    with pytest.raises(ValueError, match="%t topic, %p partition"):
        parse_format(text)


def test_json_has_text_where_bytes_are_text() -> None:
    assert json.loads(parse_format("json")(RECORD)) == {
        "topic": "orders",
        "partition": 2,
        "offset": 42,
        "timestamp": 1_700_000_000_123,
        "key": "k1",
        "value": "größe",
        "headers": [["trace", "abc"], ["none", None]],
    }


@given(st.binary())
def test_json_keeps_every_byte(data: bytes) -> None:
    shown = json.loads(parse_format("json")(dataclasses.replace(RECORD, value=data)))["value"]
    assert data == (shown.encode() if isinstance(shown, str) else base64.b64decode(shown["base64"]))


@given(st.binary())
def test_bytes_never_break_the_line_nor_reach_the_terminal(data: bytes) -> None:
    assert readable(data).isprintable()


@given(st.text())
def test_a_line_stays_one_line_whatever_is_in_the_record(text: str) -> None:
    data = text.encode("utf-8", "replace")
    record = dataclasses.replace(RECORD, key=data, value=data, headers=[(text, data)] if text.isascii() else [])
    assert parse_format("line")(record).isprintable()


def test_bytes_that_are_not_utf8_are_escaped() -> None:
    assert readable(b"ok\xff\n\x1b[31m") == r"ok\xff\n\x1b[31m"


def test_a_time_outside_the_calendar_stays_a_number() -> None:
    assert time_text(2**62) == str(2**62)
    assert time_text(-1) == "1969-12-31T23:59:59.999Z"
    assert time_text(None) == ""
