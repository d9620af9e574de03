"""Addresses of queues."""

from __future__ import annotations

import pytest

from penstock.brokerless.address import QueueAddress
from penstock.sdk.errors import InvalidInputError


def test_an_address_without_a_form_is_that_of_brokers() -> None:
    assert QueueAddress.parse("one:9092,two:9092").form == "kafka"
    assert QueueAddress.parse("kafka://one:9092,two:9092").location == "one:9092,two:9092"


def test_options_follow_a_question_mark() -> None:
    address = QueueAddress.parse("memory://events?partitions=4")
    assert (address.form, address.location, dict(address.options)) == ("memory", "events", {"partitions": "4"})
    assert address.number("partitions", 1) == 4
    assert address.number("max_messages", 7) == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "an address is a text"),
        ("amqp://host", "there are no queues at amqp://"),
        ("memory://?a=1&a=2", "the option a twice"),
        ("redis://[half", "cannot be read"),
    ],
)
def test_what_is_no_address_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        QueueAddress.parse(text)


def test_unknown_and_wrong_options_are_refused_by_name() -> None:
    address = QueueAddress.parse("memory://?partition=4&max_messages=none")
    with pytest.raises(InvalidInputError, match="no option partition: its options are partitions"):
        address.check_options("partitions")
    with pytest.raises(InvalidInputError, match="max_messages must be a whole number"):
        address.number("max_messages", 1)


def test_what_is_shown_of_an_address_has_no_password() -> None:
    address = QueueAddress.parse("redis://me:secret@host:6379/0?x=secret")
    assert address.shown == "redis://host:6379/0"
    assert "secret" not in repr(address)
