"""What is set for one group counts for it, and for no other."""

from __future__ import annotations

import uuid
from dataclasses import replace

from penstock.groups.consumer.events import ConsumerHeartbeat
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.rules import GroupRules
from support.consumer_words import image_of

IMAGE = image_of({"t": 1}, {"t": uuid.UUID(int=1)}, 1)
SETTINGS = {"consumer.session.timeout.ms": "7000", "consumer.heartbeat.interval.ms": "700"}
RULES = GroupRules(
    min_session_timeout_ms=1,
    max_session_timeout_ms=100_000,
    initial_rebalance_delay_ms=0,
    max_members=10,
    max_bytes=10_000,
    new_member_id=str,
)


def enter(group: ConsumerGroup, own: dict[str, dict[str, str]], now_ms: int) -> int:
    """The interval that a new member is told."""
    event = ConsumerHeartbeat(
        member_id="m",
        epoch=0,
        client_id="c",
        client_host="/",
        rebalance_timeout_ms=1000,
        topics=("t",),
        owned=frozenset(),
    )
    answer, outcome = group.heartbeat(event, replace(IMAGE, settings_by_group=own), now_ms)
    for record in outcome.records:
        group.apply(record, now_ms)
    return answer.heartbeat_interval_ms


def test_a_group_has_its_own_session_and_interval() -> None:
    group = ConsumerGroup("g", RULES)
    assert enter(group, {"g": SETTINGS}, 0) == 700
    assert group.deadlines.due_ms == 7000


def test_another_group_and_one_whose_settings_are_taken_back_have_the_brokers() -> None:
    group = ConsumerGroup("g", RULES)
    assert enter(group, {"h": SETTINGS}, 0) == 5000
    assert group.deadlines.due_ms == 45_000
    assert enter(group, {"g": SETTINGS}, 1) == 700
    assert enter(group, {}, 2) == 5000
