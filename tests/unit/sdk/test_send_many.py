"""Many messages in one call: what is refused before anything is sent, and the stub."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import penstock
from penstock.sdk.send.outgoing_message import compose, compose_many
from penstock.testing import AsyncStubClient, StubClient


@dataclass
class Order:
    number: int


def test_values_and_entries_become_what_single_messages_are() -> None:
    made = compose_many(
        "t", ["ü", b"b", None, Order(7), {"value": "own", "key": "bob", "partition": 2}], key="ann", biz_id="1"
    )
    assert made == [
        compose("t", "ü", key="ann", biz_id="1"),
        compose("t", b"b", key="ann", biz_id="1"),
        compose("t", None, key="ann", biz_id="1"),
        compose("t", Order(7), key="ann", biz_id="1"),
        compose("t", "own", key="bob", partition=2, biz_id="1"),
    ]


def test_time_of_an_entry_takes_the_place_of_that_of_the_call() -> None:
    (made,) = compose_many("t", [{"value": "v", "deliver_at": 1_000}], delay="1m")
    assert dict(made.headers) == {"penstock-deliver-at": b"1000"}


@pytest.mark.parametrize("messages", ["text", b"bytes", {"value": "v"}, 7, None])
def test_what_is_no_list_is_refused(messages: Any) -> None:
    with pytest.raises(penstock.InvalidInputError, match="messages must be a list of values or entries"):
        compose_many("t", messages)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (7, "value must be bytes"),
        ({}, 'an entry needs a "value"'),
        ({"value": "v", "delai": "1s"}, "delai"),
        ({"value": "v", 1: 2}, "1"),
        ({"value": "v", "delay": "1s", "deliver_at": 5}, "cannot be combined"),
        ({"value": ["v"]}, "value must be bytes"),
    ],
)
def test_error_says_which_message_is_invalid(bad: Any, said: str) -> None:
    with pytest.raises(penstock.InvalidInputError, match=r"message 2, counted from 0: .*nothing was sent") as raised:
        compose_many("t", ["a", "b", bad])
    assert said in str(raised.value)


def test_options_are_checked_even_if_there_is_nothing_to_send() -> None:
    with pytest.raises(penstock.InvalidInputError, match="delay"):
        StubClient().send_many("t", [], delay="soon")
    with pytest.raises(penstock.InvalidInputError, match="codec is for dataclasses"):
        StubClient().send_many("t", [b"x"], codec="json")


def test_stub_sends_in_order_and_tells_which_were_refused() -> None:
    stub = StubClient()
    assert [receipt.offset for receipt in stub.send_many("t", ["a", {"value": "b", "delay": "1m"}, "c"])] == [
        0,
        None,
        1,
    ]
    with pytest.raises(penstock.SendManyError) as raised:
        stub.send_many("t", ["d", {"value": "e", "partition": 9}])
    assert isinstance(raised.value.results[0], penstock.Receipt)
    assert isinstance(raised.value.results[1], penstock.SendError)
    assert [message.value for message in stub.messages("t")] == [b"a", b"c", b"d"]
    assert len(stub.send_many_soon("t", ["f"]).result()) == 1
    stub.close()
    with pytest.raises(penstock.ClosedError):
        stub.send_many("t", ["g"])


async def test_asynchronous_stub() -> None:
    stub = AsyncStubClient()
    assert len(await stub.send_many("t", ["a", "b"])) == 2
    assert len(await stub.send_many_soon("t", ["c"])) == 1
    assert [message.value for message in stub.messages("t")] == [b"a", b"b", b"c"]


def test_receipts_are_a_sequence() -> None:
    receipts = StubClient().send_many("t", ["a", "b", "c"])
    assert (len(receipts), receipts[1].offset, [each.offset for each in receipts[1:]]) == (3, 1, [1, 2])
    assert repr(receipts) == "<Receipts of 3 messages to t>"
    with pytest.raises(IndexError):
        receipts[3]
