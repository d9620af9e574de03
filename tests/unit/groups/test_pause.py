"""What is left of an assignment when topics are paused."""

from __future__ import annotations

import pytest

from penstock.groups.classic.generation import GenerationRecord
from penstock.groups.pause import NOT_PAUSED, Pause
from penstock.groups.records import decode, encode
from penstock.protocol.messages.consumer_protocol import ASSIGNMENT, ConsumerProtocolAssignment, TopicPartition

ORDERS = TopicPartition(topic="orders", partitions=(0, 1))
BILLS = TopicPartition(topic="bills", partitions=(2,))


def assignment(*topics: TopicPartition, user_data: bytes | None = None, version: int = 3) -> bytes:
    return ASSIGNMENT.encode(ConsumerProtocolAssignment(assigned_partitions=topics, user_data=user_data), version)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("user_data", [None, b"", b"own"])
def test_only_paused_partitions_are_taken_away(version: int, user_data: bytes | None) -> None:
    """librdkafka sends data of its sticky assignor along with the plan: that stays, too."""
    whole = assignment(ORDERS, BILLS, user_data=user_data, version=version)
    left = assignment(BILLS, user_data=user_data, version=version)
    nothing = assignment(user_data=user_data, version=version)
    assert Pause(topics=frozenset({"orders"})).without(whole) == left
    assert Pause(is_all=True).without(whole) == nothing
    assert NOT_PAUSED.without(whole) == whole
    assert Pause(topics=frozenset({"other"})).without(whole) == whole


@pytest.mark.parametrize("given", [b"", b"\0", b"\0\1\0\0\0\5tasks"])
def test_what_cannot_be_read_is_left_alone(given: bytes) -> None:
    assert Pause(is_all=True).without(given) == given


@pytest.mark.parametrize("pause", [NOT_PAUSED, Pause(is_all=True), Pause(topics=frozenset({"a", "b"}))])
@pytest.mark.parametrize("is_reset", [True, False])
def test_what_was_withheld_is_written_and_read(pause: Pause, is_reset: bool) -> None:
    record = GenerationRecord(
        group_id="g",
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="a",
        changed_ms=5,
        members=(),
        withheld=pause,
        is_reset=is_reset,
    )
    assert decode(encode(record)) == record


def test_a_pause_follows_from_the_settings() -> None:
    assert Pause.of_settings({}) == NOT_PAUSED
    assert Pause.of_settings({"penstock.paused.topics": "a,b"}) == Pause(topics=frozenset({"a", "b"}))
    assert Pause.of_settings({"penstock.paused": "true", "penstock.paused.topics": "a"}) == Pause(is_all=True)
