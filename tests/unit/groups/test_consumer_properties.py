"""What holds for a group whatever its members do, in both protocols: no partition is ever read by two of them.

Members behave as clients do: they let go when they are told to, and take what they are given; their answers get lost,
they crash, the broker restarts, its log fails. In the end everybody is heard, and everything is read by somebody.
"""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from penstock.errors import ApiError, Code
from penstock.groups import group_types
from penstock.groups.classic.members import Protocol
from penstock.groups.consumer.events import ConsumerHeartbeat, HeartbeatAnswer
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.events import Heartbeat, Join, Joined, Leaver, Outcome, Sync, Synced
from penstock.groups.records import encode
from penstock.groups.rules import GroupRules, OffsetRules
from penstock.groups.shard import Shard
from penstock.groups.upgrade import from_bytes, from_names
from penstock.protocol.messages.consumer_protocol import (
    ASSIGNMENT,
    PROTOCOL_TYPE,
    SUBSCRIPTION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from penstock.replication.state_log import StateRecord
from support.consumer_words import Topics, durable
from support.group_members import ClassicMember, Member, NewMember
from support.shards import replayed

TIMEOUT_MS = 10_000
"""Of sessions and rebalances."""
PATIENCE_MS = 8_000
"""A member that has had no answer for so long takes itself to be out."""

NEW, EAGER, COOPERATIVE = 2, 1, 1
ABSENT: list[tuple[int, ...]] = [(), (0, 1), (2, 3), (0, 1, 2)]
"""Members that may be away for a while: nobody, those of the new protocol, the classic ones, all but one."""
EVENTS = 40


class Life:
    """A group, its members, and what happens to them; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000
        self.log: list[StateRecord] = []
        self.log_fails = False
        self.partitions = 4
        self.topics = Topics()
        self.topics.set("t", self.partitions)
        self.ids = itertools.count()
        self.new = [NewMember(number) for number in range(NEW)]
        self.classic = [ClassicMember(number, is_cooperative=number >= EAGER) for number in range(EAGER + COOPERATIVE)]
        self.members: list[Member] = [*self.new, *self.classic]
        self.shard = self.fresh_shard()

    def fresh_shard(self) -> Shard:
        rules = GroupRules(
            min_session_timeout_ms=1_000,
            max_session_timeout_ms=60_000,
            initial_rebalance_delay_ms=0,
            max_members=20,
            max_bytes=100_000,
            new_member_id=lambda name: f"{name}-{next(self.ids)}",
            consumer_session_timeout_ms=TIMEOUT_MS,
        )
        offsets = OffsetRules(max_metadata_bytes=10, retention_ms=50_000, max_offsets=3, max_groups=2)
        return Shard(rules, offsets, self.topics.image)

    def carry_out(self, outcome: Outcome) -> bool:
        if outcome.records and self.log_fails:
            failed = Code.COORDINATOR_NOT_AVAILABLE
            self.answer([(token, type(answer)(code=failed)) for token, answer in outcome.replies])
            self.answer(self.shard.not_written(outcome.records, self.now_ms).replies)
            return False
        for record in outcome.records:
            self.log.append(encode(record))
            self.shard.apply(record, self.now_ms)
        self.answer(outcome.replies)
        return True

    def answer(self, replies: list[tuple[Any, Joined | Synced]]) -> None:
        for token, answer in replies:
            for member in self.classic:
                if member.token is token:
                    member.token = None
                    self.told(member, answer)

    def told(self, member: ClassicMember, answer: Joined | Synced) -> None:
        member.heard_ms = self.now_ms
        if answer.code in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID):
            member.drop_out()
        elif answer.code is Code.MEMBER_ID_REQUIRED:
            assert isinstance(answer, Joined)
            member.member_id = answer.member_id
        elif answer.code is not Code.NONE:
            self.must_join(member)
        elif isinstance(answer, Joined):
            member.is_in = True
            member.member_id, member.generation = answer.member_id, answer.generation
            member.must_join, member.must_sync = False, True
            member.plan_for = tuple(member_id for member_id, _, _ in answer.members)
        else:
            member.must_sync = False
            given = from_bytes(answer.assignment, self.topics.image)
            # A cooperative member has to join again to say that it has let go.
            member.must_join = member.is_cooperative and not member.reads <= given
            member.reads = given

    def must_join(self, member: ClassicMember) -> None:
        member.must_join, member.must_sync = True, False
        if not member.is_cooperative:
            member.reads = frozenset()

    def event_of(self, member: NewMember) -> ConsumerHeartbeat:
        if not member.is_in:
            member.member_id = f"new{member.number}-{next(member.names)}"
        is_full = member.is_full or not member.is_in
        return ConsumerHeartbeat(
            member_id=member.member_id,
            epoch=member.epoch,
            client_id="c",
            client_host="/",
            rebalance_timeout_ms=TIMEOUT_MS if is_full else -1,
            topics=("t",) if is_full else None,
            owned=member.reads if member.epoch else frozenset(),
        )

    def beat(self, member: NewMember, *, is_lost: bool) -> None:
        answer: HeartbeatAnswer | ApiError
        is_written = True
        try:
            answer, outcome = self.shard.consumer_heartbeat("g", self.event_of(member), self.now_ms)
            is_written = self.carry_out(outcome)
        except ApiError as error:
            answer = error
        self.heard(member, answer, is_lost=is_lost or not is_written)

    def join_together(self, members: list[NewMember]) -> None:
        answers, outcome = self.shard.consumer_joins("g", [self.event_of(member) for member in members], self.now_ms)
        is_written = self.carry_out(outcome)
        for member, answer in zip(members, answers, strict=True):
            self.heard(member, answer, is_lost=not is_written)

    def heard(self, member: NewMember, answer: HeartbeatAnswer | ApiError, *, is_lost: bool) -> None:
        if isinstance(answer, ApiError):
            assert answer.code in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH), answer
            if not is_lost:
                member.drop_out()
            return
        if is_lost:
            member.is_full = True
            return
        member.is_in = True
        member.is_full = False
        member.heard_ms = self.now_ms
        member.epoch = answer.epoch
        if answer.assignment is not None:
            member.given = answer.assignment
            member.reads |= answer.assignment

    def act(self, member: NewMember) -> None:
        """It lets go of what it was not given again."""
        member.reads = member.given

    def step(self, member: ClassicMember) -> None:
        if member.token is not None:
            return
        member.token = object()
        if member.must_join:
            self.join(member)
        elif member.must_sync:
            self.sync(member)
        else:
            member.token = None
            event = Heartbeat(member_id=member.member_id, instance_id=None, generation=member.generation)
            code = self.shard.heartbeat("g", event, self.now_ms)
            member.heard_ms = self.now_ms
            if code is Code.REBALANCE_IN_PROGRESS:
                self.must_join(member)
            elif code is not Code.NONE:
                member.drop_out()

    def join(self, member: ClassicMember) -> None:
        owned = member.reads if member.is_cooperative else frozenset()
        indexes = tuple(sorted(partition.partition for partition in owned))
        subscription = ConsumerProtocolSubscription(
            topics=("t",), owned_partitions=(TopicPartition(topic="t", partitions=indexes),) if indexes else ()
        )
        event = Join(
            token=member.token,
            member_id=member.member_id,
            instance_id=None,
            client_id=f"old{member.number}",
            client_host="/",
            session_timeout_ms=TIMEOUT_MS,
            rebalance_timeout_ms=TIMEOUT_MS,
            protocol_type=PROTOCOL_TYPE,
            protocols=(Protocol("p", SUBSCRIPTION.encode(subscription)),),
            must_know_its_id=True,
            can_skip_assignment=False,
        )
        self.carry_out(self.shard.join("g", event, self.now_ms))

    def sync(self, member: ClassicMember) -> None:
        plan = tuple((member_id, self.share(place, member.plan_for)) for place, member_id in enumerate(member.plan_for))
        event = Sync(
            token=member.token,
            member_id=member.member_id,
            instance_id=None,
            generation=member.generation,
            protocol_type=None,
            protocol=None,
            assignments=plan,
        )
        self.carry_out(self.shard.sync("g", event, self.now_ms))

    def share(self, place: int, members: tuple[str, ...]) -> bytes:
        """The classic leader's plan: it moves nothing that a cooperative member still reads."""
        taken = {
            partition.partition: found.member_id
            for found in self.classic
            if found.is_cooperative and found.member_id in members
            for partition in found.reads
        }
        free = [index for index in range(self.partitions) if index not in taken]
        mine = [index for index, member_id in taken.items() if member_id == members[place]]
        mine += free[place :: len(members)]
        topics = (TopicPartition(topic="t", partitions=tuple(sorted(mine))),)
        return ASSIGNMENT.encode(ConsumerProtocolAssignment(assigned_partitions=topics))

    def goes_on(self) -> None:
        """One event after the other; now and then others are away."""
        absent = self.random.choice(ABSENT)
        for _ in range(EVENTS):
            if self.random.random() < 0.1:
                absent = self.random.choice(ABSENT)
            for number in absent:
                if self.random.random() < 0.3:
                    self.random.choice([self.leave, Member.drop_out])(self.members[number])
            present = [member for number, member in enumerate(self.members) if number not in absent]
            self.something_happens(present)
            self.check()

    def something_happens(self, present: list[Member]) -> None:
        event = self.random.random()
        if event < 0.5:
            for _ in range(self.random.randrange(15)):
                self.does_something(self.random.choice(present))
        elif event < 0.65:
            self.everybody_does_something(present)
        elif event < 0.72:
            self.leave(self.random.choice(present))
        elif event < 0.77:
            self.random.choice(present).drop_out()
        elif event < 0.87:
            self.time_passes(self.random.randrange(1, 2_000))
        elif event < 0.92:
            self.log_fails = self.random.random() < 0.4
        elif event < 0.96:
            self.the_broker_restarts()
        else:
            self.the_topic_grows()

    def does_something(self, member: Member) -> None:
        if isinstance(member, ClassicMember):
            self.step(member)
        elif isinstance(member, NewMember):
            what = self.random.randrange(4)
            if what == 0:
                self.act(member)
            else:
                self.beat(member, is_lost=what == 1)
        self.check_readers()

    def everybody_does_something(self, present: list[Member]) -> None:
        joining = [member for member in present if isinstance(member, NewMember) and not member.is_in]
        if joining:
            self.join_together(joining)
        for member in present:
            if isinstance(member, NewMember):
                self.beat(member, is_lost=False)
                self.act(member)
            elif isinstance(member, ClassicMember):
                self.step(member)
            self.check_readers()

    def ends(self) -> None:
        """Some go, the others are heard from now on: in the end all is read by them."""
        absent = self.random.choice(ABSENT)
        for number in absent:
            self.members[number].drop_out()
        present = [member for number, member in enumerate(self.members) if number not in absent]
        self.log_fails = False
        for _ in range(60):
            self.everybody_does_something(present)
            self.time_passes(500)
        read = frozenset().union(*(member.reads for member in present))
        everything = (TopicPartition(topic="t", partitions=tuple(range(self.partitions))),)
        assert read == from_names(everything, self.topics.image)
        group = self.shard.groups["g"]
        assert group_types.state_name(group) == "Stable"
        assert isinstance(group, ConsumerGroup) == any(isinstance(member, NewMember) for member in present)

    def leave(self, member: Member) -> None:
        if isinstance(member, NewMember) and member.is_in:
            event = ConsumerHeartbeat(member_id=member.member_id, epoch=-1, client_id="c", client_host="/")
            try:
                _, outcome = self.shard.consumer_heartbeat("g", event, self.now_ms)
                self.carry_out(outcome)
            except ApiError as error:
                assert error.code is Code.UNKNOWN_MEMBER_ID
        elif isinstance(member, ClassicMember) and member.member_id and member.token is None:
            _, outcome = self.shard.leave("g", (Leaver(member.member_id, None),), self.now_ms)
            self.carry_out(outcome)
        else:
            return
        member.drop_out()

    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        for member in self.members:
            is_waiting = isinstance(member, ClassicMember) and member.token is not None
            if member.is_in and not is_waiting and self.now_ms - member.heard_ms > PATIENCE_MS:
                member.drop_out()
            if isinstance(member, NewMember) and not member.reads <= member.given:
                self.act(member)
        for outcome in self.shard.tick(self.now_ms).values():
            self.carry_out(outcome)

    def the_broker_restarts(self) -> None:
        for member in self.classic:
            if member.token is not None:
                member.token = None
                member.heard_ms = self.now_ms
                self.must_join(member)
        self.shard = self.replayed()

    def the_topic_grows(self) -> None:
        if self.partitions < 8:
            self.partitions += 1
            self.topics.set("t", self.partitions)
            self.shard.image = self.topics.image

    def replayed(self) -> Shard:
        return replayed(self.fresh_shard(), self.log, self.now_ms)

    def check_readers(self) -> None:
        readers = [partition for member in self.members for partition in member.reads]
        assert len(readers) == len(set(readers)), [(type(found).__name__, found.reads) for found in self.members]

    def check(self) -> None:
        self.check_readers()
        group, found = self.shard.groups.get("g"), self.replayed().groups.get("g")
        if isinstance(group, ConsumerGroup):
            assert isinstance(found, ConsumerGroup)
            assert durable(found.state) == durable(group.state)
            assert not group.state.is_all_classic


@pytest.mark.parametrize("seed", range(80))
def test_no_partition_is_read_by_two_and_in_the_end_each_is_by_one(seed: int) -> None:
    life = Life(seed)
    life.goes_on()
    life.ends()
