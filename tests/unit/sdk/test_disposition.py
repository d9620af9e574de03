"""What failed messages become, and the names and headers that are part of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.headers import ERROR_BYTES, Origin, error_text, failures_of, origin_of, tags_of, value_of
from penstock.sdk.message import Message
from penstock.sdk.ports import Outgoing, Received
from penstock.sdk.receive.disposition import dead_letter_record, rerouted_record, resent_record, retry_record
from penstock.sdk.receive.topic_layout import RetryTopic, TopicLayout
from penstock.sdk.topic_names import dead_topic, is_retry_topic, retry_topic, shared_retry_topic, view_of

RETRY = RetryTopic("g.orders.retry", 7)
LAYOUT = TopicLayout({"orders": RETRY}, "g.dead", dead_partitions=5)
FIRST = Received("orders", 3, 42, b"value", b"key", (("own", b"1"), ("penstock-biz-id", b"b")), 1_700_000_000_000)


def arrived(outgoing: Outgoing, offset: int = 0) -> Received:
    """A message as a broker would give it out once it is due."""
    headers = tuple(
        ("penstock-deliver-at", b"1700000000500") if name == "penstock-delay" else (name, value)
        for name, value in outgoing.headers
    )
    assert outgoing.partition is not None
    return Received(
        outgoing.topic, outgoing.partition, offset, outgoing.value, outgoing.key, headers, 1_700_000_009_999
    )


def test_a_retry_keeps_what_the_message_had() -> None:
    retry = retry_record(Message(FIRST), LAYOUT, 1, "ValueError: no", 1500)
    assert (retry.topic, retry.key, retry.value) == ("g.orders.retry", b"key", b"value")
    assert retry.headers[:2] == FIRST.headers
    assert value_of(retry.headers, "penstock-delay") == b"1500"
    assert value_of(retry.headers, "penstock-attempt") == b"1"
    assert value_of(retry.headers, "penstock-origin") == b"orders/3/42/1700000000000"
    assert value_of(retry.headers, "penstock-error") == b"ValueError: no"


def test_the_origin_stays_through_all_attempts_and_nothing_piles_up() -> None:
    received = FIRST
    for failures in range(1, 6):
        message = Message(received)
        assert (message.topic, message.partition, message.offset) == ("orders", 3, 42)
        assert message.timestamp_ms == 1_700_000_000_000
        assert message.attempt == failures
        received = arrived(retry_record(message, LAYOUT, failures, f"error {failures}", 10))
        names = [name for name, _ in received.headers]
        assert len(names) == len(set(names))
    letter = dead_letter_record(Message(received), LAYOUT, 6, "the last")
    assert {name for name, _ in letter.headers} == {
        "own",
        "penstock-biz-id",
        "penstock-attempt",
        "penstock-origin",
        "penstock-error",
        "penstock-retry-topic",
    }
    assert value_of(letter.headers, "penstock-retry-topic") == b"g.orders.retry"


def test_each_topic_and_view_that_is_read_has_retries_of_its_own() -> None:
    view = "orders.paid.view-12345678"
    layout = TopicLayout(
        {"refunds": RetryTopic("g.refunds.retry", 2), view: RetryTopic("g.paid.retry", 3)},
        "g.dead",
        5,
        shared_retry=RetryTopic("g.retry", 4),
        views={"orders": view},
    )
    assert layout.topics == ("refunds", view)
    assert layout.retry_topics == ("g.refunds.retry", "g.paid.retry", "g.retry")
    shown = replace(FIRST, topic=view, base="orders")
    retry = retry_record(Message(shown), layout, 1, "no", 10)
    assert retry.topic == "g.paid.retry"
    assert value_of(retry.headers, "penstock-origin") == b"orders/3/42/1700000000000"
    again = retry_record(Message(arrived(retry)), layout, 2, "no", 10)
    assert again.topic == "g.paid.retry"
    # Version 0.1 wrote the same to the topic that the whole group shared.
    old = replace(arrived(retry), topic="g.retry")
    assert layout.foreign_topic(old) is None
    assert retry_record(Message(old), layout, 2, "no", 10).topic == "g.paid.retry"
    assert dead_letter_record(Message(old), layout, 2, "no").headers[-1] == ("penstock-retry-topic", b"g.paid.retry")


def test_what_the_shared_retry_topic_has_of_another_topic_is_foreign_and_moves_as_it_is() -> None:
    layout = TopicLayout(
        {"refunds": RetryTopic("g.refunds.retry", 2)}, "g.dead", 5, shared_retry=RetryTopic("g.retry", 4)
    )
    old = replace(arrived(retry_record(Message(FIRST), LAYOUT, 2, "no", 10)), topic="g.retry")
    assert layout.foreign_topic(old) == "orders"
    moved = rerouted_record(Message(old), RETRY)
    assert (moved.topic, moved.key, moved.value) == (RETRY.name, b"key", b"value")
    assert (Message(arrived(moved)).attempt, Message(arrived(moved)).origin) == (3, Message(FIRST).origin)
    assert not {name for name, _ in moved.headers} & {"penstock-delay", "penstock-deliver-at", "penstock-timer-id"}
    # Nobody else could handle what does not say where it was first.
    nameless = replace(old, headers=())
    assert layout.foreign_topic(nameless) is None
    assert retry_record(Message(nameless), layout, 1, "no", 10).topic == "g.retry"


def test_the_same_failure_has_the_same_name_in_the_same_partition_and_another_has_another() -> None:
    first, again = (retry_record(Message(FIRST), LAYOUT, 1, error, delay) for error, delay in (("a", 1), ("b", 2)))
    assert first.partition == again.partition
    assert value_of(first.headers, "penstock-timer-id") == value_of(again.headers, "penstock-timer-id")
    later = retry_record(Message(FIRST), LAYOUT, 2, "a", 1)
    other = retry_record(Message(replace(FIRST, offset=43)), LAYOUT, 1, "a", 1)
    names = {value_of(each.headers, "penstock-timer-id") for each in (first, later, other)}
    assert len(names) == 3
    assert all(name is not None and len(name) <= 255 for name in names)


def test_a_message_that_was_delayed_is_not_told_twice_when() -> None:
    delayed = replace(
        FIRST, headers=(*FIRST.headers, ("penstock-deliver-at", b"1700000000000"), ("penstock-timer-id", b"mine"))
    )
    retry = retry_record(Message(delayed), LAYOUT, 1, "no", 10)
    assert value_of(retry.headers, "penstock-deliver-at") is None
    assert sum(name == "penstock-timer-id" for name, _ in retry.headers) == 1
    assert value_of(dead_letter_record(Message(delayed), LAYOUT, 1, "no").headers, "penstock-deliver-at") is None


def test_a_resent_letter_has_all_its_attempts_before_it_and_says_which_it_was() -> None:
    letter = arrived(dead_letter_record(Message(FIRST), LAYOUT, 8, "the last"), offset=9)
    resent = resent_record(letter, RETRY)
    message = Message(arrived(resent))
    assert (message.attempt, message.error, message.origin) == (
        1,
        "the last",
        Origin("orders", 3, 42, 1_700_000_000_000),
    )
    assert value_of(resent.headers, "penstock-resend") == f"g.dead/{letter.partition}/9".encode()


def test_headers_that_somebody_else_wrote_wrongly_count_as_absent() -> None:
    assert failures_of((("penstock-attempt", b"many"),)) == 0
    assert failures_of((("penstock-attempt", None),)) == 0
    for wrong in (b"", b"orders", b"orders/x/1/2", b"/1/2/3", b"orders/1/2/3/4", b"\xff/1/2/-3"):
        assert origin_of((("penstock-origin", wrong),)) is None


def test_tags_of_several_headers_count_together() -> None:
    assert tags_of((("penstock-tags", b"a, b"), ("other", b"x"), ("penstock-tags", b",c,"))) == ("a", "b", "c")


@given(st.text(max_size=3000))
def test_an_error_is_readable_text_within_its_bound(text: str) -> None:
    raw = error_text(ValueError(text))
    assert len(raw) <= ERROR_BYTES
    assert raw.decode().startswith("ValueError")


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.none() | st.integers(0, 2**47))
def test_an_origin_comes_back_from_its_header(partition: int, offset: int, timestamp_ms: int | None) -> None:
    origin = Origin("orders", partition, offset, timestamp_ms)
    assert origin_of((("penstock-origin", str(origin).encode()),)) == origin


def test_the_topics_of_a_group_are_named_after_it() -> None:
    assert (shared_retry_topic("billing"), dead_topic("billing")) == ("billing.retry", "billing.dead")
    assert re.fullmatch(r"billing\.orders-[0-9a-f]{8}\.retry", retry_topic("billing", "orders"))


def test_groups_and_topics_with_dots_do_not_share_retries() -> None:
    names = {retry_topic(*pair) for pair in (("a", "b.c"), ("a.b", "c"), ("a", "b-c"), ("a-b", "c"))}
    assert len(names) == 4


@pytest.mark.parametrize("group", ["billing", "a.b", "with blanks", "x" * 249])
def test_a_group_knows_its_own_retry_topics(group: str) -> None:
    assert is_retry_topic(group, shared_retry_topic(group))
    for topic in ("orders", "a.b-c", "y" * 249):
        assert is_retry_topic(group, retry_topic(group, topic))
    for other in ("orders", f"{group}.dead", "other.retry", retry_topic("other", "orders"), f"{group}.orders.retry"):
        assert not is_retry_topic(group, other)


@pytest.mark.parametrize("group", ["with blanks", "ünïcode", "a/b", "x" * 249, "x" * 244])
def test_a_group_that_no_topic_can_be_called_after_has_topics_of_its_own(group: str) -> None:
    for name_of in (shared_retry_topic, lambda group: retry_topic(group, "orders"), dead_topic):
        assert len(name_of(group)) <= 249
        assert name_of(group) == name_of(group)
        assert name_of(group) != name_of(group + "!")
        assert all(char.isalnum() or char in "._-" for char in name_of(group))
        assert name_of(group).isascii()


def test_the_same_tags_have_the_same_view_whatever_the_blanks() -> None:
    assert view_of("orders", "a and  b") == view_of("orders", " a and b ")
    assert view_of("orders", "a and b") != view_of("orders", "a or b")
    assert view_of("orders", "a or b") != view_of("orders", "a|or|b")
