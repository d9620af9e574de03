"""Paths into JSON, and masks that never fail open."""

from __future__ import annotations

import json

import pytest

from penstock.console.errors import InvalidError
from penstock.console.messages.json_path import JsonPath
from penstock.console.messages.message_row import payload
from penstock.console.security.masking import MASKED, Mask
from penstock.console.security.roles import Caller, Grant, GrantKind, Role

_ORDER = {"id": 7, "customer": {"card": "4711", "a.b": 1}, "items": [{"price": 1}, {"price": 2, "card": "12"}]}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$.id", [7]),
        ("id", [7]),
        ("$.customer.card", ["4711"]),
        ("$.items[1].price", [2]),
        ("$.items[-1].price", [2]),
        ("$.items[*].price", [1, 2]),
        ("$..card", ["4711", "12"]),
        ("$.customer['a.b']", [1]),
        ("$.absent.deeper", []),
        ("$.items[9]", []),
    ],
)
def test_a_path_leads_to_values(path: str, found: list[object]) -> None:
    assert list(JsonPath.parse(path).find(_ORDER)) == found


@pytest.mark.parametrize("path", ["", "$.", "$[", "$.a[x]", "$.a b['", "x" * 501, "$..", "$['a"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidError):
        JsonPath.parse(path)


def _masked(path: str, value: bytes) -> bytes | None:
    return Mask(paths=(JsonPath.parse(path),)).value(value)


def test_a_mask_replaces_every_value_that_its_path_leads_to() -> None:
    shown = _masked("$..card", json.dumps(_ORDER).encode())
    assert shown is not None and b"4711" not in shown and b'"price": 2' in shown
    assert json.loads(shown)["items"][1]["card"] == MASKED


@pytest.mark.parametrize(
    "value",
    [
        b"card=4711",
        b'"4711"',
        b"4711",
        b'{"card": "4711"',
        b"[" * 100_000 + b"4711",
        b'{"a":' * 200 + b'{"card": "4711"}' + b"}" * 200,
        b'\xff{"card": "4711"}',
    ],
)
def test_what_cannot_be_masked_in_part_is_hidden(value: bytes) -> None:
    shown = _masked("$..card", value)
    assert shown is not None and b"4711" not in shown


def test_a_header_is_masked_in_any_case() -> None:
    mask = Mask(headers=frozenset({"authorization"}))
    assert mask.header("Authorization", b"secret") == MASKED.encode()
    assert mask.header("other", b"shown") == b"shown"


@pytest.mark.parametrize(
    ("raw", "format", "text"),
    [
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b"plain", "text", "plain"),
        (b"\x00\x01", "hex", "00 01"),
        (b"\xff\xfe", "hex", "ff fe"),
        ("é".encode(), "text", "é"),
    ],
)
def test_bytes_are_shown_as_what_they_are(raw: bytes, format: str, text: str) -> None:
    shown = payload(raw, 100)
    assert shown is not None and (shown.format, shown.text, shown.is_cut) == (format, text, False)


def test_a_long_value_is_cut_between_characters() -> None:
    shown = payload("é".encode() * 10, 5)
    assert shown is not None and (shown.text, shown.is_cut, shown.size_bytes) == ("éé", True, 20)


def test_the_highest_of_role_and_grants_counts() -> None:
    grants = (
        Grant(GrantKind.TOPIC, "a.", Role.ADMIN, "one"),
        Grant(GrantKind.TOPIC, "", Role.VIEWER),
        Grant(GrantKind.GROUP, "a.", Role.OPERATOR),
    )
    caller = Caller(name="x", role=Role.NONE, grants=grants)
    assert caller.role_on_topic("one", "a.orders") is Role.ADMIN
    assert caller.role_on_topic("two", "a.orders") is Role.VIEWER
    assert caller.role_on_group("two", "a.billing") is Role.OPERATOR
    assert caller.role_on_group("two", "b") is Role.NONE
    assert caller.highest_role is Role.ADMIN
