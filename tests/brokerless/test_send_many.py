"""Many messages in one call, with every form of queue."""

from __future__ import annotations

import itertools

import pytest

import penstock
from penstock.sdk.headers import value_of
from support.forms import Opened, promised
from support.receiving import Heard, running
from support.waiting import until

PROMISE = "Many messages in one call: order, a receipt or an error for each"
TOO_LARGE = b"x" * 2_000_000


def received(client: penstock.Client, topic: str, count: int) -> list[penstock.Message]:
    heard = Heard()
    client.subscribe(topic, heard, group=topic)
    with running(client):
        return heard.wait(count)


@promised(PROMISE)
def test_each_message_is_where_its_receipt_says_and_keys_keep_their_order(form: Opened, topic: str) -> None:
    client = form.client()
    entries = [penstock.SendEntry(value=b"%d" % number, key=b"%d" % (number % 7)) for number in range(3_000)]
    receipts = client.send_many(topic, entries)
    assert len(receipts) == len(entries) and client.counters.sent == len(entries)
    messages = received(client, topic, len(entries))
    places = {(message.partition, message.offset): message.value for message in messages}
    assert places == {
        (receipt.partition, receipt.offset): entry["value"] for receipt, entry in zip(receipts, entries, strict=True)
    }
    for partition in {receipt.partition for receipt in receipts}:
        offsets = [receipt.offset for receipt in receipts if receipt.partition == partition]
        assert all(
            before is not None and after is not None and before < after for before, after in itertools.pairwise(offsets)
        )


@promised(PROMISE)
def test_calls_and_single_messages_keep_the_order_in_which_they_were_made(form: Opened, topic: str) -> None:
    client = form.client(sending=penstock.Sending(linger="50ms"))
    numbers = itertools.count()
    futures: list[object] = []
    for _ in range(5):
        futures.append(client.send_soon(topic, f"{next(numbers)}", key="k"))
        futures.append(client.send_many_soon(topic, [f"{next(numbers)}" for _ in range(10)], key="k"))
    assert client.flush()
    assert [message.value for message in received(client, topic, 55)] == [b"%d" % number for number in range(55)]


@promised(PROMISE)
def test_options_of_the_call_hold_for_all_but_entries_that_have_their_own(form: Opened, topic: str) -> None:
    client = form.client()
    receipts = client.send_many(
        topic,
        [
            "plain",
            {"value": "own", "key": "bob", "tags": ["late"], "biz_id": "8"},
            {"value": "later", "delay": "300ms"},
            None,
        ],
        key="ann",
        tags=iter(["early", "eu"]),
        headers=iter([("a", "1")]),
    )
    assert [receipt.offset is None for receipt in receipts] == [False, False, True, False]
    by_value = {message.value: message for message in received(client, topic, 4)}
    plain, own, later = by_value[b"plain"], by_value[b"own"], by_value[b"later"]
    assert (plain.key, plain.tags, plain.biz_id) == (b"ann", ("early", "eu"), None)
    assert (own.key, own.tags, own.biz_id) == (b"bob", ("late",), "8")
    assert (later.key, later.tags) == (b"ann", ("early", "eu"))
    assert {value_of(message.headers, "a") for message in by_value.values()} == {b"1"}


@promised(PROMISE)
def test_message_that_is_too_large_fails_alone_and_the_error_says_which(form: Opened, topic: str) -> None:
    client = form.client()
    client.send(topic, "first", key="k")
    values = [TOO_LARGE if number in (0, 4, 5, 19) else b"%d" % number for number in range(20)]
    with pytest.raises(penstock.SendManyError, match=r"4 of 20 messages .* message 0, ") as raised:
        client.send_many(topic, values, key="k")
    results = raised.value.results
    assert [number for number, each in enumerate(results) if isinstance(each, penstock.SendError)] == [0, 4, 5, 19]
    assert not raised.value.is_retriable
    assert (client.counters.sent, client.counters.failed) == (17, 4)
    messages = received(client, topic, 17)
    assert [message.value for message in messages] == [b"first", *(each for each in values if each is not TOO_LARGE)]
    stored = [each for each in results if isinstance(each, penstock.Receipt)]
    assert [(each.partition, each.offset) for each in stored] == [
        (message.partition, message.offset) for message in messages[1:]
    ]


@promised(PROMISE)
def test_invalid_entry_sends_nothing(form: Opened, topic: str) -> None:
    client = form.client()
    with pytest.raises(penstock.InvalidInputError, match=r"message 1, counted from 0: .* nothing was sent"):
        client.send_many(topic, ["good", {"value": "bad", "tags": ["a,b"]}])
    assert list(client.send_many(topic, [])) == []
    client.send(topic, "only")
    assert [message.value for message in received(client, topic, 1)] == [b"only"]
    assert client.counters.sent == 1


@promised(PROMISE)
def test_exactly_once_clients_and_hooks_see_every_message(form: Opened, topic: str) -> None:
    class Noting(penstock.Hooks):
        def __init__(self) -> None:
            self.sent_values: list[bytes | None] = []

        def sending(self, outgoing: penstock.Outgoing) -> penstock.Outgoing:
            return outgoing

        def sent(self, outgoing: penstock.Outgoing, receipt: penstock.Receipt, seconds: float) -> None:
            self.sent_values.append(outgoing.value)

    noting = Noting()
    client = form.client(sending=penstock.Sending(delivery="exactly-once"), hooks=[noting], client_id="shop")
    receipts = client.send_many(topic, [b"%d" % number for number in range(50)], key="k")
    wanted = [b"%d" % number for number in range(50)]
    assert noting.sent_values == wanted
    messages = received(client, topic, 50)
    assert [message.value for message in messages] == wanted
    assert [message.offset for message in messages] == [receipt.offset for receipt in receipts]
    assert {message.header("penstock-sender") for message in messages} == {"shop"}


@promised(PROMISE)
def test_call_that_the_buffer_cannot_hold_is_refused(form: Opened, topic: str) -> None:
    client = form.client(sending=penstock.Sending(when_away=penstock.Drop(messages=5)))
    client.send(topic, "first", key="k")
    with pytest.raises(penstock.SendManyError) as raised:
        client.send_many(topic, [f"{number}" for number in range(1_000)], key="k")
    failed = [isinstance(each, penstock.BufferFullError) for each in raised.value.results]
    # What was taken is the beginning; a form without a broker takes all or nothing.
    assert failed == sorted(failed) and any(failed)
    if form.name != "broker":
        assert all(failed)
    until(lambda: client.counters.failed == sum(failed), "all are counted")
