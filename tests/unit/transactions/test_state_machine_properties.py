"""What holds for transactional ids whatever their producers do, in whatever order, late or twice, with a log that fails
now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.errors import Code
from penstock.ids import TopicPartition
from penstock.replication.state_log import StateRecord
from penstock.transactions import state_machine
from penstock.transactions.records import decode, encode
from penstock.transactions.shard import TransactionRules, TransactionShard
from penstock.transactions.state import MAX_EPOCH, NO_EPOCH, Status, TransactionRecord, TransactionState
from penstock.transactions.state_machine import NO_PRODUCER, Decision, Producer

RULES = TransactionRules(max_timeout_ms=60_000, id_expiry_ms=50_000, max_ids=2, max_partitions=3)
NEW, OLD = 2, 0
NAMES = {"new": NEW, "old": OLD}
"""Transactional ids, each with the protocol that its producers speak."""

names = st.sampled_from(["new", "new", "new", "old"])
picks = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3])
"""Chooses one of what a producer has been, the last one first: requests may be late."""
partitions = st.frozensets(st.sampled_from([TopicPartition("t", index) for index in range(4)]), min_size=1, max_size=2)


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.log: list[StateRecord] = []
        self.log_fails = False
        self.fresh_ids = 0
        self.incarnations = 0
        self.owners: dict[tuple[str, Producer], int] = {}
        """Who was given an id and epoch."""
        self.outcomes: dict[Producer, bool] = {}
        """Of the transactions of new producers, whether they were committed: at most one an epoch."""
        self.highest: dict[int, int] = {}
        """The highest epoch of each producer id."""
        self.shard = TransactionShard(RULES)

    def known(self, name: str, pick: int) -> Producer:
        """Somebody that a producer of this id is or was; nobody if there never was one."""
        pairs = [producer for owned, producer in self.owners if owned == name]
        return pairs[-1 - min(pick, len(pairs) - 1)] if pairs else Producer(0, 0)

    def decide(self, name: str, decide: Callable[[TransactionState | None, int | None], Decision]) -> Decision | None:
        """As the coordinator does it; None if the decision could not be written."""
        state = self.shard.states.get(name)
        decision = decide(state, None)
        if decision.wants_producer_id:
            assert decision.state is None
            self.fresh_ids += 1
            decision = decide(state, self.fresh_ids)
            assert not decision.wants_producer_id
        if decision.state is not None and not self.write([TransactionRecord(name, decision.state)]):
            return None
        return decision

    def write(self, records: list[TransactionRecord]) -> bool:
        if records and self.log_fails:
            self.log_fails = False
            return False
        for record in records:
            self.check_step(record)
            self.log.append(encode(record))
            self.shard.apply(record)
        return True

    def check_step(self, record: TransactionRecord) -> None:
        """No step leads back, and what is decided can only be completed."""
        before, after = self.shard.states.get(record.transactional_id), record.state
        if after is None:
            assert before is not None
            assert before.status is Status.EMPTY or before.status.is_complete
            return
        assert after.producer_epoch >= self.highest.get(after.producer_id, 0)
        self.highest[after.producer_id] = after.producer_epoch
        assert len(after.partitions) <= RULES.max_partitions
        if before is None:
            assert after.status is Status.EMPTY
        elif before.status.is_decided:
            commits = before.status is Status.PREPARE_COMMIT
            assert after.status is (Status.COMPLETE_COMMIT if commits else Status.COMPLETE_ABORT)
        elif before.status is Status.ONGOING:
            assert after.status is Status.ONGOING or after.status.is_decided
            assert after.partitions >= before.partitions
            assert (after.started_ms, after.producer_id) == (before.started_ms, before.producer_id)
            if after.status.is_decided and NAMES[record.transactional_id] == NEW:
                me = Producer(before.producer_id, before.producer_epoch)
                assert me not in self.outcomes, "one transaction an epoch"
                self.outcomes[me] = after.status is Status.PREPARE_COMMIT
        else:
            assert after.status is not Status.PREPARE_COMMIT, "nothing was there to be committed"

    def give(self, name: str, producer: Producer, owner: int) -> None:
        """Somebody is told who it is."""
        assert 0 <= producer.epoch < MAX_EPOCH
        assert self.owners.setdefault((name, producer), owner) == owner, "given to two"

    @rule(name=names, timeout_ms=st.sampled_from([1_000, 60_000]))
    def begin(self, name: str, timeout_ms: int) -> None:
        decision = self.decide(
            name, lambda state, fresh: state_machine.init(state, NO_PRODUCER, timeout_ms, fresh, self.now_ms)
        )
        if decision is not None and decision.code is Code.NONE:
            self.incarnations += 1
            self.give(name, decision.producer, self.incarnations)

    @rule(name=names, pick=picks)
    def bump(self, name: str, pick: int) -> None:
        me = self.known(name, pick)
        decision = self.decide(name, lambda state, fresh: state_machine.init(state, me, 1_000, fresh, self.now_ms))
        if decision is not None and decision.code is Code.NONE and (name, me) in self.owners:
            self.give(name, decision.producer, self.owners[name, me])

    @rule(name=names)
    def epochs_later(self, name: str) -> None:
        """The last epochs of an id are soon reached."""
        state = self.shard.states.get(name)
        if state is None or state.status is Status.ONGOING or state.status.is_decided:
            return
        late = replace(state, producer_epoch=max(state.producer_epoch, MAX_EPOCH - 3), last_epoch=NO_EPOCH)
        me = Producer(state.producer_id, state.producer_epoch)
        if late != state and (name, me) in self.owners and self.write([TransactionRecord(name, late)]):
            self.give(name, Producer(late.producer_id, late.producer_epoch), self.owners[name, me])

    @rule(name=names, pick=picks, wanted=partitions)
    def add(self, name: str, pick: int, wanted: frozenset[TopicPartition]) -> None:
        me, version = self.known(name, pick), NAMES[name]
        before = self.shard.states.get(name)
        decision = self.decide(
            name,
            lambda state, _: state_machine.add_partitions(
                state, me, wanted, RULES.max_partitions, version, self.now_ms
            ),
        )
        if decision is not None and decision.code is Code.NONE:
            assert before is not None
            assert not before.status.is_decided
            assert me == (before.producer_id, before.producer_epoch)
            assert set(state_machine.verify(self.shard.states[name], me, wanted).values()) == {Code.NONE}

    @rule(name=names, pick=picks, wanted=partitions)
    def verify(self, name: str, pick: int, wanted: frozenset[TopicPartition]) -> None:
        me, state = self.known(name, pick), self.shard.states.get(name)
        for at, code in state_machine.verify(state, me, wanted).items():
            belongs = (
                state is not None
                and state.status is Status.ONGOING
                and me == (state.producer_id, state.producer_epoch)
                and at in state.partitions
            )
            assert (code is Code.NONE) == belongs

    @rule(name=names, pick=picks, commits=st.booleans(), completes=st.booleans())
    def end(self, name: str, pick: int, commits: bool, completes: bool) -> None:
        me, version = self.known(name, pick), NAMES[name]
        before = self.shard.states.get(name)
        decision = self.decide(
            name, lambda state, fresh: state_machine.end(state, me, version, fresh, self.now_ms, commits=commits)
        )
        if decision is None:
            return
        if decision.state is not None:
            assert before is not None
            assert me == (before.producer_id, before.producer_epoch), "somebody else has ended it"
        if decision.code is Code.NONE:
            self.give(name, decision.producer, self.owners[name, me])
            if version == NEW and me in self.outcomes:
                assert self.outcomes[me] == commits, "told otherwise than it is"
            elif version == NEW:
                assert not commits, "told that it is committed what never was"
        if completes:
            self.markers_are_written()

    @rule()
    def markers_are_written(self) -> None:
        for name in self.shard.undone():
            self.write([TransactionRecord(name, state_machine.completed(self.shard.states[name], self.now_ms))])

    @rule(ms=st.sampled_from([0, 0, 100, 1_000, 60_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        while self.shard.is_due(self.now_ms):
            overdue = self.shard.overdue(self.now_ms)
            assert overdue
            self.write(overdue)

    @rule()
    def ids_expire(self) -> None:
        if self.write(list(self.shard.expired(self.now_ms))):
            assert not list(self.shard.expired(self.now_ms))

    @rule()
    def the_log_fails_once(self) -> None:
        self.log_fails = True

    @rule()
    def the_broker_restarts(self) -> None:
        self.shard = self.replayed()

    def replayed(self) -> TransactionShard:
        shard = TransactionShard(RULES)
        for written in self.log:
            record = decode(written)
            assert record is not None
            shard.apply(record)
        return shard

    @invariant()
    def what_was_written_is_what_is_known(self) -> None:
        durable = {name: replace(state, last_epoch=NO_EPOCH) for name, state in self.shard.states.items()}
        assert self.replayed().states == durable

    @invariant()
    def nothing_is_due_twice(self) -> None:
        assert not self.shard.overdue(self.now_ms)

    def teardown(self) -> None:
        """Everybody goes quiet: nothing is left open."""
        self.log_fails = False
        self.time_passes(60_000)
        self.markers_are_written()
        for state in self.shard.states.values():
            assert state.status is Status.EMPTY or state.status.is_complete


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
