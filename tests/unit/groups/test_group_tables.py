"""A group as rows, and how often it is looked at."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from penstock.groups.changes import Changes
from penstock.groups.classic.generation import GenerationRecord
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.members import ClassicMember
from penstock.groups.consumer.assignment import TopicIdPartition
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.members import ConsumerMember, Current
from penstock.groups.consumer.records import CurrentRecord, EpochRecord, GroupEpoch, MemberRecord, TargetEpochRecord
from penstock.groups.group_tables.group_rows import rows_of
from penstock.groups.group_types import Group
from penstock.groups.offsets import Committed
from penstock.groups.pause import Pause
from penstock.groups.rules import GroupRules
from penstock.ids import BrokerId, TopicPartition
from penstock.protocol.messages.consumer_protocol import PROTOCOL_TYPE
from penstock.sql.dialects.dialect import Row
from penstock.storage.sql.metadata_tables import (
    CONSUMER,
    CONSUMER_GROUP,
    CONSUMER_GROUP_CONSUMER,
    CONSUMER_GROUP_TOPIC,
    QUEUE_OFFSET,
    Table,
)
from support.classic_words import protocol
from support.consumer_words import image_of, plan

IDS = {"orders": uuid.UUID(int=1), "bills": uuid.UUID(int=2)}
IMAGE = replace(image_of({"orders": 2, "bills": 1}, IDS, 1), settings_by_group={"g": {"b": "2", "a": "1"}})
RULES = GroupRules(
    min_session_timeout_ms=1,
    max_session_timeout_ms=60_000,
    initial_rebalance_delay_ms=0,
    max_members=10,
    max_bytes=1 << 20,
    new_member_id=lambda name: name,
)
NOW_MS = 7_000


def rows(group: Group | None, **offsets: int) -> dict[Table, list[Row]]:
    """`orders_0=5` is a committed offset."""
    committed = {
        TopicPartition(name[:-2], int(name[-1])): Committed(offset, -1, "", 0) for name, offset in offsets.items()
    }
    found = rows_of("g", group, committed, IMAGE, BrokerId(4), NOW_MS)
    return {table: sorted(each) for table, each in found.items()}


def member(member_id: str, assigned: str = "", **more: Any) -> ClassicMember:
    made = ClassicMember(
        member_id=member_id,
        instance_id=None,
        client_id="client",
        client_host="/host",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocols=(protocol("range:orders,bills", PROTOCOL_TYPE),),
        assignment=plan(assigned) if assigned else b"",
    )
    return replace(made, **more)


def classic(*members: ClassicMember, withheld: Pause | None = None, kind: str = PROTOCOL_TYPE) -> ClassicGroup:
    group = ClassicGroup("g", RULES)
    record = GenerationRecord(
        group_id="g",
        protocol_type=kind,
        generation=3,
        protocol="range" if members else None,
        leader=members[0].member_id if members else None,
        changed_ms=0,
        members=members,
        withheld=withheld or Pause(),
    )
    group.apply(record, NOW_MS)
    return group


def test_a_classic_group_is_its_members_their_topics_and_partitions() -> None:
    found = rows(classic(member("m1", "orders/0,1"), member("m2", "bills/0", instance_id="two")), orders_0=5, gone_0=1)
    settings = '{"a": "1", "b": "2"}'
    assert found[CONSUMER_GROUP] == [("g", "classic", "consumer", "Stable", 3, "range", 2, 4, settings)]
    assert found[CONSUMER] == [
        ("g", "m1", "client", None, "/host", NOW_MS),
        ("g", "m2", "client", "two", "/host", NOW_MS),
    ]
    assert found[CONSUMER_GROUP_CONSUMER] == [("g", "m1", 3, 2), ("g", "m2", 3, 1)]
    assert found[CONSUMER_GROUP_TOPIC] == [("g", "bills", 1), ("g", "gone", 0), ("g", "orders", 1)]
    assert found[QUEUE_OFFSET] == [
        ("g", "bills", 0, None, "m2"),
        ("g", "gone", 0, 1, None),
        ("g", "orders", 0, 5, "m1"),
        ("g", "orders", 1, None, "m1"),
    ]


def test_while_a_group_rebalances_nobody_has_a_partition() -> None:
    group = classic(member("m1", "orders/0,1"), member("m2", "bills/0"))
    assert rows(group, orders_0=5)[QUEUE_OFFSET][1] == ("g", "orders", 0, 5, "m1")
    group.members["m2"].heard(NOW_MS + 10_000)
    group.tick(NOW_MS + 15_000)  # nothing was heard from the other one
    found = rows(group, orders_0=5)
    assert found[CONSUMER_GROUP][0][3] == "PreparingRebalance"
    assert found[QUEUE_OFFSET] == [("g", "orders", 0, 5, None)]
    assert found[CONSUMER_GROUP_CONSUMER] == [("g", "m2", 3, 0)]


def test_what_is_paused_is_nobodys() -> None:
    group = classic(member("m1", "orders/0,1;bills/0"), withheld=Pause(topics=frozenset({"orders"})))
    assert rows(group)[QUEUE_OFFSET] == [("g", "bills", 0, None, "m1")]
    assert rows(group)[CONSUMER_GROUP_CONSUMER] == [("g", "m1", 3, 1)]


@pytest.mark.parametrize(
    ("assigned", "kind"), [(b"\xff\xff", PROTOCOL_TYPE), (plan("orders/0"), "connect"), (plan("new/0"), PROTOCOL_TYPE)]
)
def test_a_plan_that_is_not_about_partitions_here_is_left_out(assigned: bytes, kind: str) -> None:
    group = classic(member("m1", assignment=assigned), kind=kind)
    assert rows(group)[QUEUE_OFFSET] == []
    assert rows(group)[CONSUMER_GROUP_CONSUMER] == [("g", "m1", 3, 0)]


def test_a_group_that_only_has_offsets_is_empty() -> None:
    found = rows(None, orders_1=5)
    assert found[CONSUMER_GROUP][0][:7] == ("g", "classic", "", "Empty", 0, None, 0)
    assert found[CONSUMER_GROUP_TOPIC] == [("g", "orders", 0)]
    assert found[QUEUE_OFFSET] == [("g", "orders", 1, 5, None)]
    assert rows(None) == {}


def test_a_member_of_the_new_protocol_has_a_partition_until_it_lets_go_of_it() -> None:
    group = ConsumerGroup("g", RULES)
    orders, bills = TopicIdPartition(IDS["orders"], 0), TopicIdPartition(IDS["bills"], 0)
    deleted = TopicIdPartition(uuid.UUID(int=9), 0)
    current = Current(epoch=5, assigned=frozenset({orders, deleted}), revoking=frozenset({bills}))
    for record in (
        MemberRecord("g", "m1", ConsumerMember(member_id="m1", client_id="c", client_host="/h", topics=("orders",))),
        EpochRecord("g", GroupEpoch(6, 0)),
        TargetEpochRecord("g", 6),
        CurrentRecord("g", "m1", current),
    ):
        group.apply(record, NOW_MS)
    found = rows(group, orders_0=5)
    assert found[CONSUMER_GROUP][0][:7] == ("g", "consumer", "consumer", "Reconciling", 6, "uniform", 1)
    assert found[CONSUMER_GROUP_CONSUMER] == [("g", "m1", 5, 2)]
    assert found[QUEUE_OFFSET] == [("g", "bills", 0, None, "m1"), ("g", "orders", 0, 5, "m1")]


def test_what_does_not_fit_is_cut_or_left_out() -> None:
    long = "x" * 300
    wanted = protocol(f"range:orders,{long}", PROTOCOL_TYPE)
    fits = member("m1", client_id=f"a\0b{long}", instance_id=long, protocols=(wanted,))
    found = rows(classic(fits, member(long), member("ends with a space ")))
    assert found[CONSUMER] == [("g", "m1", f"ab{long}"[:255], long[:255], "/host", NOW_MS)]
    assert found[CONSUMER_GROUP][0][6] == 3
    assert found[CONSUMER_GROUP_TOPIC] == [("g", "bills", 1), ("g", "orders", 1)]


def test_many_changes_of_a_group_are_one_look_at_it() -> None:
    changes = Changes()
    for _ in range(1_000):
        changes.mark_groups(["a", "b"])
        changes.mark_offset("a", TopicPartition("orders", 0))
        changes.mark_offset("c", TopicPartition("orders", 0))
    # Offsets can wait; those of a group that is looked at anyway need not.
    assert changes.groups.take(with_offsets=False) == {"a", "b"}
    assert changes.groups.take(with_offsets=True) == {"c"}
    assert changes.groups.take(with_offsets=True) == set()
    assert changes.offsets.take() == {"orders": {("a", 0), ("c", 0)}}


def test_a_loaded_shard_is_told_to_both_copies() -> None:
    changes = Changes()
    changes.mark_loaded()
    assert changes.offsets.take_loaded()
    assert changes.groups.take_loaded()
    assert not changes.groups.take_loaded()
