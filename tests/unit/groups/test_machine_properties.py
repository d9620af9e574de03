"""What holds for a shard whatever its clients do, in whatever order, with a log that fails now and then."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.errors import Code
from penstock.groups.classic.group import ClassicGroup, GroupState
from penstock.groups.classic.members import Protocol
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.events import Heartbeat, Join, Joined, Leaver, MemberEpoch, Outcome, Sync, Synced
from penstock.groups.offsets import Committed
from penstock.groups.pause import NOT_PAUSED, Pause
from penstock.groups.records import encode
from penstock.groups.rules import GroupRules, OffsetRules
from penstock.groups.shard import Shard
from penstock.ids import TopicPartition
from penstock.replication.state_log import StateRecord
from support.consumer_words import image_of
from support.shards import replayed

MAX_MEMBERS = 4
LONGEST_MS = 60_000
"""No timeout in here is longer."""

clients = st.integers(0, 6)
protocols = st.lists(st.sampled_from(["range", "roundrobin", "sticky"]), min_size=1, max_size=3, unique=True)


def classic(group: ClassicGroup | ConsumerGroup) -> ClassicGroup:
    assert isinstance(group, ClassicGroup)
    return group


class Client:
    def __init__(self, number: int) -> None:
        self.number = number
        self.member_id = ""
        self.generation = -1
        self.leads: tuple[str, ...] = ()
        self.instance_id = f"i{number % 3}" if number >= 4 else None


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.ids = 0
        self.log: list[StateRecord] = []
        self.log_fails = False
        self.clients = [Client(number) for number in range(7)]
        self.asked: dict[int, Client] = {}
        """Requests that are not answered yet."""
        self.tokens = 0
        self.generation = 0
        self.pause = NOT_PAUSED
        self.put_out: set[str] = set()
        """Members that a reset has put out."""
        self.shard = self.fresh_shard()

    def fresh_shard(self) -> Shard:
        groups = GroupRules(
            min_session_timeout_ms=1_000,
            max_session_timeout_ms=LONGEST_MS,
            initial_rebalance_delay_ms=500,
            max_members=MAX_MEMBERS,
            max_bytes=10_000,
            new_member_id=self.new_id,
            new_member_join_ms=20_000,
        )
        offsets = OffsetRules(max_metadata_bytes=10, retention_ms=50_000, max_offsets=3, max_groups=2)
        return Shard(groups, offsets, image_of({}, {}, 1))

    def new_id(self, name: str) -> str:
        self.ids += 1
        return f"{name}-{self.ids}"

    def token(self, client: Client) -> int:
        self.tokens += 1
        self.asked[self.tokens] = client
        return self.tokens

    def carry_out(self, outcome: Outcome) -> None:
        if outcome.records and self.log_fails:
            failed = [(token, type(answer)(code=Code.NOT_COORDINATOR)) for token, answer in outcome.replies]
            self.answer(failed)
            self.answer(self.shard.not_written(outcome.records, self.now_ms).replies)
            return
        for record in outcome.records:
            self.log.append(encode(record))
            self.shard.apply(record, self.now_ms)
        self.answer(outcome.replies)

    def answer(self, replies: list[tuple[Any, Joined | Synced]]) -> None:
        for token, answer in replies:
            client = self.asked.pop(token)  # fails for a request that was answered before
            if isinstance(answer, Synced):
                if answer.code is Code.NONE and answer.assignment:
                    number = classic(self.shard.groups["g"]).generation.number
                    assert answer.assignment.decode().split(":")[0] == str(number)
            elif answer.code in (Code.NONE, Code.MEMBER_ID_REQUIRED):
                client.member_id, client.generation = answer.member_id, answer.generation
                client.leads = tuple(member_id for member_id, _, _ in answer.members)
                if answer.members:
                    assert answer.member_id in client.leads
            elif answer.code is Code.UNKNOWN_MEMBER_ID:
                client.member_id = ""

    @rule(
        number=clients,
        offered=protocols,
        forgets=st.booleans(),
        is_old=st.booleans(),
        session_ms=st.sampled_from([1_000, 5_000, LONGEST_MS]),
        rebalance_ms=st.sampled_from([0, 3_000, LONGEST_MS]),
    )
    def join(
        self, number: int, offered: list[str], forgets: bool, is_old: bool, session_ms: int, rebalance_ms: int
    ) -> None:
        client = self.clients[number]
        if forgets:
            client.member_id = ""
        event = Join(
            token=self.token(client),
            member_id=client.member_id,
            instance_id=client.instance_id,
            client_id=f"c{number}",
            client_host="/",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type="consumer",
            protocols=tuple(Protocol(name, name.encode()) for name in offered),
            must_know_its_id=not is_old,
            can_skip_assignment=not is_old,
        )
        self.carry_out(self.shard.join("g", event, self.now_ms))

    @rule(number=clients)
    def sync(self, number: int) -> None:
        client = self.clients[number]
        event = Sync(
            token=self.token(client),
            member_id=client.member_id,
            instance_id=client.instance_id,
            generation=client.generation,
            protocol_type=None,
            protocol=None,
            assignments=tuple((found, f"{client.generation}:{found}".encode()) for found in client.leads),
        )
        self.carry_out(self.shard.sync("g", event, self.now_ms))

    @rule(number=clients)
    def beat(self, number: int) -> None:
        client = self.clients[number]
        event = Heartbeat(member_id=client.member_id, instance_id=client.instance_id, generation=client.generation)
        self.shard.heartbeat("g", event, self.now_ms)

    @rule(numbers=st.lists(clients, min_size=1, max_size=3))
    def leave(self, numbers: list[int]) -> None:
        leavers = tuple(Leaver(self.clients[number].member_id, self.clients[number].instance_id) for number in numbers)
        codes, outcome = self.shard.leave("g", leavers, self.now_ms)
        assert len(codes) == len(leavers)
        self.carry_out(outcome)

    @rule(number=clients, partition=st.integers(0, 5), offset=st.integers(0, 100))
    def commit(self, number: int, partition: int, offset: int) -> None:
        client = self.clients[number]
        offsets = {TopicPartition("t", partition): Committed(offset, -1, "", self.now_ms)}
        member = MemberEpoch(client.member_id, client.instance_id, client.generation)
        refusal, _, outcome = self.shard.commit("g", member, offsets, self.now_ms)
        assert refusal is not None or client.member_id not in self.put_out
        self.carry_out(outcome)

    @rule(partition=st.integers(0, 5), offset=st.integers(0, 100))
    def reset(self, partition: int, offset: int) -> None:
        group = self.shard.groups.get("g")
        members = set() if group is None else set(group.members)
        at, before = TopicPartition("t", partition), self.shard.offsets.of("g")
        had = before.get(at)
        _, codes, outcome = self.shard.reset("g", {at: Committed(offset, -1, "", self.now_ms)}, self.now_ms)
        is_done = codes.get(at) is Code.NONE and not self.log_fails
        self.carry_out(outcome)
        if not is_done:
            assert self.shard.offsets.of("g").get(at) == had
            return
        assert self.shard.offsets.of("g")[at].offset == offset
        self.put_out |= members
        group = self.shard.groups.get("g")
        assert group is None or not group.members
        if members:
            nobody = MemberEpoch("", None, -1)
            refusal, _, _ = self.shard.commit("g", nobody, {at: Committed(1, -1, "", self.now_ms)}, self.now_ms)
            assert refusal is Code.UNKNOWN_MEMBER_ID

    @rule(topics=st.sampled_from([(), ("t",), ("t", "u"), ("*",)]))
    def pause_changes(self, topics: tuple[str, ...]) -> None:
        self.pause = Pause.of_names(topics)
        self.carry_out(self.shard.pause("g", self.pause, self.now_ms))

    @rule(ms=st.sampled_from([0, 100, 1_000, 10_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        for outcome in self.shard.tick(self.now_ms).values():
            self.carry_out(outcome)

    @rule()
    def offsets_expire(self) -> None:
        before = self.shard.groups.get("g")
        self.carry_out(self.shard.expire(self.now_ms))
        if before is not None and "g" not in self.shard.groups:
            self.generation = 0

    @rule(fails=st.booleans())
    def the_log(self, fails: bool) -> None:
        self.log_fails = fails

    @rule()
    def the_broker_restarts(self) -> None:
        self.shard = self.replayed()
        self.asked.clear()
        group = self.shard.groups.get("g")
        self.generation = 0 if group is None else classic(group).generation.number

    def replayed(self) -> Shard:
        shard = self.fresh_shard()
        shard.pause("g", self.pause, self.now_ms)
        return replayed(shard, self.log, self.now_ms)

    @invariant()
    def a_generation_never_goes_back(self) -> None:
        group = self.shard.groups.get("g")
        if group is None:
            self.generation = 0  # it never had a plan, or is gone: whoever comes begins a new group
            return
        number = classic(group).generation.number
        assert number >= self.generation
        self.generation = number

    @invariant()
    def a_group_is_no_larger_than_allowed(self) -> None:
        for group in map(classic, self.shard.groups.values()):
            assert len(group.members) <= MAX_MEMBERS
            assert len(group._told) <= MAX_MEMBERS
            assert len(self.shard.offsets.of(group.group_id)) <= 3

    @invariant()
    def a_group_has_a_leader_and_counts_its_members_rightly(self) -> None:
        for group in map(classic, self.shard.groups.values()):
            roster = group.roster
            assert roster.size == sum(member.size for member in roster)
            assert roster.joining == sum(member.join_token is not None for member in roster)
            offered = Counter(offered.name for member in roster for offered in member.protocols)
            assert roster._offered == offered
            assert roster.static_ids == {
                member.instance_id: member.member_id for member in roster if member.instance_id is not None
            }
            if group.state in (GroupState.COMPLETING, GroupState.STABLE):
                assert group.generation.leader in group.members
                assert all(member.join_token is None for member in roster)
            if group.state is GroupState.EMPTY:
                assert not roster.by_id

    @invariant()
    def a_stable_group_has_been_handed_what_it_shall_have(self) -> None:
        group = self.shard.groups.get("g")
        if group is not None and group.state is GroupState.STABLE:
            assert group.generation.withheld == self.pause

    @invariant()
    def nobody_is_handed_what_another_has(self) -> None:
        for group in self.shard.groups.values():
            if group.state is GroupState.STABLE:
                given = [member.assignment for member in group.members.values() if member.assignment]
                assert len(set(given)) == len(given)

    @invariant()
    def what_was_written_is_what_is_known(self) -> None:
        after = self.replayed()
        assert after.offsets.committed == self.shard.offsets.committed

    def teardown(self) -> None:
        """Everybody goes quiet: every request is answered, and nobody is left."""
        self.log_fails = False
        for _ in range(10):
            self.time_passes(LONGEST_MS)
        assert not self.asked
        for group in self.shard.groups.values():
            assert group.state is GroupState.EMPTY
            assert group.due_ms is None


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
