"""Messages as HTTP requests: nothing is lost on the way, and no header can be broken out of."""

from __future__ import annotations

import json
from urllib.parse import unquote_to_bytes

from hypothesis import given
from hypothesis import strategies as st

from penstock.push.requests import OF_RECORD, batch, safe_name, safe_value, single
from penstock.sdk.message import Message
from penstock.sdk.ports import Headers, Received


def message(headers: Headers = (), *, key: bytes | None = b"42", value: bytes | None = b"paid") -> Message:
    return Message(Received("orders", 3, 17, value, key, headers, 1_700_000_000_000))


def headers_of(sent: Message) -> dict[str, str]:
    return dict(single(sent, 8).headers)


def test_the_value_is_the_body_and_the_rest_are_headers() -> None:
    sent = message((("penstock-tags", b"a,b"), ("penstock-biz-id", b"order-42"), ("penstock-attempt", b"2")))
    assert single(sent, 8).body == b"paid"
    assert headers_of(sent) == {
        "content-type": "application/octet-stream",
        "penstock-topic": "orders",
        "penstock-partition": "3",
        "penstock-offset": "17",
        "penstock-timestamp": "1700000000000",
        "penstock-key": "42",
        "penstock-attempt": "3",
        "penstock-attempts": "8",
        "penstock-tags": "a,b",
        "penstock-biz-id": "order-42",
    }


def test_a_retried_message_says_where_it_was_first() -> None:
    found = headers_of(message((("penstock-origin", b"orders/1/5/99"), ("penstock-error", b"x"))))
    assert (found["penstock-partition"], found["penstock-offset"], found["penstock-timestamp"]) == ("1", "5", "99")
    assert not any(name.startswith(OF_RECORD) for name in found)


def test_no_value_is_told_from_an_empty_one() -> None:
    assert headers_of(message(value=None))["penstock-null"] == "value"
    assert "penstock-null" not in headers_of(message(value=b""))


def test_no_key_is_told_from_an_empty_one() -> None:
    assert "penstock-key" not in headers_of(message(key=None))
    assert headers_of(message(key=b""))["penstock-key"] == ""


def test_headers_of_the_record_come_along_each_as_often_as_it_is_there() -> None:
    sent = single(message((("Trace Id", b"\x00\xff"), ("x", b"1"), ("x", b"2"), ("y", None))), 8)
    own = [(name, value) for name, value in sent.headers if name.startswith(OF_RECORD)]
    assert own == [
        (f"{OF_RECORD}%54race%20%49d", "%00%FF"),
        (f"{OF_RECORD}x", "1"),
        (f"{OF_RECORD}x", "2"),
        (f"{OF_RECORD}y", ""),
    ]


def test_traces_go_on_under_their_own_names() -> None:
    assert headers_of(message((("traceparent", b"00-a-b-01"),)))["traceparent"] == "00-a-b-01"


def test_a_content_type_of_the_record_is_that_of_the_request_unless_it_is_none() -> None:
    assert headers_of(message((("Content-Type", b"application/json; charset=utf-8"),)))["content-type"] == (
        "application/json; charset=utf-8"
    )
    assert headers_of(message((("content-type", b"a/b\r\nx: y"),)))["content-type"] == "application/octet-stream"


def test_a_batch_is_a_json_array() -> None:
    sent = batch([message((("h", b"\xff"),)), message(key=None, value=None)])
    assert dict(sent.headers) == {"content-type": "application/json", "penstock-batch": "2"}
    first, second = json.loads(sent.body)
    assert first == {
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "timestamp": 1_700_000_000_000,
        "attempt": 1,
        "tags": [],
        "biz_id": None,
        "headers": [{"name": "h", "value_base64": "/w=="}],
        "key": "42",
        "value": "paid",
    }
    assert (second["key"], second["value"]) == (None, None)


@given(st.binary())
def test_any_bytes_survive_as_a_value(value: bytes) -> None:
    written = safe_value(value)
    assert unquote_to_bytes(written) == value
    assert written.isascii() and all(character.isprintable() and character != " " for character in written)


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_any_text_survives_as_a_name_also_where_capitals_do_not(name: str) -> None:
    written = safe_name(name)
    assert unquote_to_bytes(written.lower()).decode() == name
    assert all(character.isalnum() or character in "-_.%~" for character in written) and written.isascii()
