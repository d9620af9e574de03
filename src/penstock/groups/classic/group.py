"""One group of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup as a pure machine.

`docs/internals/groups.md` draws the states. An event and the time go in, an `Outcome` comes out; the clock moves only
by `tick`. Durable state (generation, members and their assignments) changes only by a `GenerationRecord`, which `apply`
takes in right after it was appended, and at replay. Waiting requests and the ends of sessions are soft; so is a
generation until its leader has brought the plan.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from penstock.errors import Code
from penstock.groups.classic.generation import Generation, GenerationRecord
from penstock.groups.classic.members import ClassicMember
from penstock.groups.classic.rebalance_timing import RebalanceTiming
from penstock.groups.classic.roster import Roster
from penstock.groups.classic.subscription import is_same
from penstock.groups.events import Heartbeat, Join, Joined, Leaver, Outcome, Sync, Synced
from penstock.groups.pause import NOT_PAUSED, Pause
from penstock.groups.reset import ResetGuard
from penstock.groups.rules import GroupRules


class GroupState(Enum):
    """Kafka's names, which DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class ClassicGroup:
    """Members, and the rebalance they are in."""

    def __init__(self, group_id: str, rules: GroupRules) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = Generation()
        self.changed_ms = -1
        """When the last record was written; offsets of an empty group expire counting from here."""
        self.is_durable = False
        """Whether a record of it is in the log."""
        self.due_ms: int | None = None
        """`tick` has nothing to do before; heartbeats may have moved the real time further."""
        self.roster = Roster()
        self.pause = NOT_PAUSED
        """What shall be withheld from the members; what is, the generation knows."""
        self.guard = ResetGuard()
        self._rules = rules
        self._told: dict[str, int] = {}
        """Ids that were given out and not used yet, and until when they may be; the oldest first."""
        self._timing = RebalanceTiming(rules.initial_rebalance_delay_ms)

    @property
    def members(self) -> dict[str, ClassicMember]:
        return self.roster.by_id

    @property
    def is_blank(self) -> bool:
        """Nothing is lost if it is forgotten."""
        return self.is_idle and not self.is_durable

    @property
    def is_idle(self) -> bool:
        """No member is in it, or about to join."""
        return self.state is GroupState.EMPTY and not self._told

    def check(self, member_id: str, instance_id: str | None, generation: int | None) -> Code | None:
        """Why a request does not count as the member's (of this generation); None if it does."""
        if instance_id is not None:
            known = self.roster.static_ids.get(instance_id)
            if known is None:
                return Code.UNKNOWN_MEMBER_ID
            if known != member_id:
                return Code.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        return None if generation in (None, self.generation.number) else Code.ILLEGAL_GENERATION

    def join(self, event: Join, now_ms: int) -> Outcome:
        outcome = Outcome()
        code = self._refusal(event)
        if code is not None:
            outcome.reply(event.token, Joined(code=code, member_id=event.member_id))
        elif event.member_id == "":
            self._join_anew(event, now_ms, outcome)
        elif event.member_id in self._told and event.instance_id not in self.roster.static_ids:
            del self._told[event.member_id]
            self._add(event, event.member_id, now_ms, outcome)
        else:
            self._join_again(event, now_ms, outcome)
        return outcome

    def sync(self, event: Sync, now_ms: int) -> Outcome:
        outcome = Outcome()
        code = self._sync_refusal(event)
        if code is not None:
            outcome.reply(event.token, Synced(code=code))
            return outcome
        member = self.members[event.member_id]
        member.heard(now_ms)
        member.has_synced = True
        if self.state is GroupState.STABLE:
            outcome.reply(event.token, self.generation.synced(member.assignment))
            return outcome
        outcome.reply(member.sync_token, Synced(code=Code.REBALANCE_IN_PROGRESS))
        member.sync_token = event.token
        if event.member_id == self.generation.leader:
            plan = dict(event.assignments)
            agreed = self.generation.withholding(self.pause)
            outcome.records.append(agreed.record(self.group_id, self.roster, now_ms, plan))
            for waiting in self.roster:
                outcome.reply(waiting.sync_token, agreed.synced(plan.get(waiting.member_id, b"")))
        return outcome

    def heartbeat(self, event: Heartbeat, now_ms: int) -> Code:
        code = self.check(event.member_id, event.instance_id, event.generation)
        if code is not None:
            return code
        member = self.members[event.member_id]
        if not member.is_new:
            member.heard(now_ms)
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else Code.NONE

    def leave(self, leavers: tuple[Leaver, ...], now_ms: int) -> tuple[list[Code], Outcome]:
        """An answer for each member that leaves; the others rebalance once."""
        outcome = Outcome()
        before = len(self.roster)
        codes = [self._let_go(leaver, outcome) for leaver in leavers]
        if len(self.roster) < before:
            self._rebalance(now_ms, outcome)
        else:
            self._complete_if_ready(now_ms, outcome)
        return codes, outcome

    def set_pause(self, pause: Pause, now_ms: int) -> Outcome:
        """From now on this is withheld; members who have something else are called together."""
        self.pause = pause
        outcome = Outcome()
        if self.state is GroupState.STABLE and self.generation.withholding(pause) != self.generation:
            self._rebalance(now_ms, outcome)
        return outcome

    def fence_all(self, now_ms: int) -> Outcome:
        """Fences every member once the record is in the log; the coordinator answers waiting members then."""
        outcome = Outcome(fenced=len(self.roster))
        self.roster.heard(now_ms)
        self.roster.answer_waiting(outcome, Code.UNKNOWN_MEMBER_ID)
        record = self.generation.next_empty().record(self.group_id, Roster(), now_ms)
        outcome.records.append(replace(record, is_reset=True))
        return outcome

    def tick(self, now_ms: int) -> Outcome:
        """Ends what is over: sessions, ids that were not used, a rebalance, the wait for a plan."""
        outcome = Outcome()
        self._told = {member_id: until_ms for member_id, until_ms in self._told.items() if until_ms > now_ms}
        is_sync_over = self._timing.ends_sync(now_ms)
        gone = [member for member in self.roster if member.is_over(now_ms) or (is_sync_over and not member.has_synced)]
        outcome.expired = len(gone)
        for member in gone:
            self._drop(member, outcome)
        if gone:
            self._rebalance(now_ms, outcome)
        else:
            self._complete_if_ready(now_ms, outcome)
        self._look_again()
        return outcome

    def apply(self, record: GenerationRecord, now_ms: int) -> None:
        """Takes in a record that is in the log."""
        self.generation = Generation.of(record)
        self.changed_ms = record.changed_ms
        self.is_durable = True
        self.guard.record(now_ms, is_reset=record.is_reset)
        self.roster = self.roster.successor(record.members, now_ms)
        self.state = GroupState.STABLE if self.roster else GroupState.EMPTY
        if self.roster and record.leader is None:
            self._rebalance(now_ms, Outcome())  # no leader, so there is no plan: it was a consumer group before
        self._look_again()

    def not_written(self, now_ms: int) -> Outcome:
        """A record could not be appended, and who waited for it was told so: a plan is lost, so make another one."""
        outcome = Outcome()
        if self.state is GroupState.COMPLETING:
            for member in self.roster:
                member.sync_token = None
                member.heard(now_ms)
            self._rebalance(now_ms, outcome)
        return outcome

    def restart_sessions(self, now_ms: int) -> Outcome:
        """No member could be heard while the group was not loaded; what is withheld may have changed."""
        self.roster.heard(now_ms)
        self.guard.restart(now_ms)
        outcome = self.set_pause(self.pause, now_ms)
        self._look_again()
        return outcome

    def abandon(self, code: Code) -> Outcome:
        """This broker no longer coordinates the group: answers every request that waits."""
        outcome = Outcome()
        self.roster.answer_waiting(outcome, code)
        return outcome

    def _refusal(self, event: Join) -> Code | None:
        code = self._rules.refusal(event, self.roster)
        if code is not None:
            return code
        is_consistent = bool(event.protocol_type and event.protocols)
        if self.state is not GroupState.EMPTY:
            is_consistent = event.protocol_type == self.generation.protocol_type and self.roster.supports(
                offered.name for offered in event.protocols
            )
        return None if is_consistent else Code.INCONSISTENT_GROUP_PROTOCOL

    def _sync_refusal(self, event: Sync) -> Code | None:
        agreed = self.generation
        code = self.check(event.member_id, event.instance_id, event.generation)
        if code is None and self.state is GroupState.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if code is None and not agreed.is_of(event):
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        if code is None and sum(len(assigned) for _, assigned in event.assignments) > self._rules.max_bytes:
            code = Code.UNKNOWN_SERVER_ERROR  # what Kafka answers when a plan does not fit into a record
        return code

    def _join_anew(self, event: Join, now_ms: int, outcome: Outcome) -> None:
        member_id = self._rules.new_member_id(event.instance_id or event.client_id)
        if event.instance_id in self.roster.static_ids:
            self._take_over(event, member_id, now_ms, outcome)
        elif event.must_know_its_id and (event.instance_id is None or self.guard.is_on(now_ms)):
            if len(self._told) >= self._rules.max_members:
                del self._told[next(iter(self._told))]
            self._told[member_id] = now_ms + event.session_timeout_ms
            self._wake(now_ms + event.session_timeout_ms)
            outcome.reply(event.token, Joined(code=Code.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(event, member_id, now_ms, outcome)

    def _join_again(self, event: Join, now_ms: int, outcome: Outcome) -> None:
        code = self.check(event.member_id, event.instance_id, None)
        if code is not None:
            outcome.reply(event.token, Joined(code=code, member_id=event.member_id))
            return
        member = self.members[event.member_id]
        leads = member.member_id == self.generation.leader
        if member.protocols == event.protocols and (
            self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and not leads)
        ):
            # It missed our answer, or looks only whether it is still in: nothing changes for the others.
            member.heard(now_ms)
            outcome.reply(event.token, self.generation.joined(member, self.roster))
            return
        self._update(member, event, now_ms)
        self._await_join(member, event.token, outcome)
        self._rebalance(now_ms, outcome)

    def _add(self, event: Join, member_id: str, now_ms: int, outcome: Outcome) -> None:
        member = self._rules.new_member(event, member_id, now_ms)
        if not self.roster:
            self.generation = replace(self.generation, protocol_type=event.protocol_type, leader=member_id)
        self.roster.add(member)
        self._await_join(member, event.token, outcome)
        self._wake(member.expires_ms)
        self._timing.somebody_came(now_ms)
        self._rebalance(now_ms, outcome)

    def _take_over(self, event: Join, member_id: str, now_ms: int, outcome: Outcome) -> None:
        """A static member came back under a new id: its former self is fenced and it goes on in its place."""
        assert event.instance_id is not None
        former_id = self.roster.static_ids[event.instance_id]
        member = self.members[former_id]
        fenced = Joined(code=Code.FENCED_INSTANCE_ID, member_id=former_id)
        outcome.reply(self.roster.await_join(member, None), fenced)
        outcome.reply(member.sync_token, Synced(code=Code.FENCED_INSTANCE_ID))
        member.sync_token = None
        protocol = self.generation.protocol or ""
        before = member.metadata_of(protocol)
        self.roster.rename(member, member_id)
        self._update(member, event, now_ms)
        was_leader = self.generation.leader == former_id
        if was_leader:
            self.generation = self.generation.led_by(member_id)
        if (
            self.state is not GroupState.STABLE
            or self.roster.vote() != protocol
            or not is_same(before, member.metadata_of(protocol))
        ):
            self._await_join(member, event.token, outcome)
            self._rebalance(now_ms, outcome)
            return
        outcome.records.append(self.generation.record(self.group_id, self.roster, now_ms))
        if was_leader and not event.can_skip_assignment:
            # An older client would make a new plan if it were told that it leads; led by its former self it does not.
            answer = self.generation.led_by(former_id).joined(member, self.roster)
        else:
            answer = self.generation.joined(member, self.roster, skip_assignment=was_leader)
        outcome.reply(event.token, answer)

    def _update(self, member: ClassicMember, event: Join, now_ms: int) -> None:
        self.roster.describe(member, event.client_id, event.client_host, event.protocols)
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        if not member.is_new:
            member.heard(now_ms)
            self._wake(member.expires_ms)

    def _await_join(self, member: ClassicMember, token: object, outcome: Outcome) -> None:
        """A client that asks again has given up its former request."""
        former = self.roster.await_join(member, token)
        outcome.reply(former, Joined(code=Code.REBALANCE_IN_PROGRESS, member_id=member.member_id))

    def _let_go(self, leaver: Leaver, outcome: Outcome) -> Code:
        member_id = leaver.member_id
        if member_id == "" and leaver.instance_id is not None:
            # An administrator removes a static member without knowing its id.
            member_id = self.roster.static_ids.get(leaver.instance_id, "")
        if self._told.pop(member_id, None) is not None:
            return Code.NONE
        code = self.check(member_id, leaver.instance_id, None)
        if code is None:
            self._drop(self.members[member_id], outcome)
        return code or Code.NONE

    def _drop(self, member: ClassicMember, outcome: Outcome) -> None:
        outcome.reply(member.join_token, Joined(code=Code.UNKNOWN_MEMBER_ID, member_id=member.member_id))
        outcome.reply(member.sync_token, Synced(code=Code.UNKNOWN_MEMBER_ID))
        self.roster.remove(member)
        if self.generation.leader == member.member_id:
            self.generation = self.generation.led_by(next(iter(self.members), None))

    def _rebalance(self, now_ms: int, outcome: Outcome) -> None:
        """Begins a rebalance, or goes on with the one under way."""
        if self.state is not GroupState.PREPARING:
            for member in [found for found in self.roster if found.sync_token is not None]:
                outcome.reply(member.sync_token, Synced(code=Code.REBALANCE_IN_PROGRESS))
                member.sync_token = None
                member.heard(now_ms)
            is_initial = self.state is GroupState.EMPTY
            self.state = GroupState.PREPARING
            self._timing.begin(now_ms, self.roster.longest_rebalance_ms, is_initial=is_initial)
            self._look_again()
        self._complete_if_ready(now_ms, outcome)

    def _complete_if_ready(self, now_ms: int, outcome: Outcome) -> None:
        if self.state is not GroupState.PREPARING:
            return
        all_are_here = self.roster.joining == len(self.roster) and not self._told
        if not self.roster or self._timing.is_over(now_ms, all_are_here=all_are_here):
            self._complete(now_ms, outcome)

    def _complete(self, now_ms: int, outcome: Outcome) -> None:
        """Every member that is coming has joined: a new generation begins."""
        for member in [found for found in self.roster if found.join_token is None and found.instance_id is None]:
            self.roster.remove(member)
            outcome.expired += 1
        joined = [member for member in self.roster if member.join_token is not None]
        if self.roster and not joined:
            # Only static members are left, and none of them is back: they keep their places until their sessions end.
            self._timing.wait_longer(now_ms, self.roster.longest_rebalance_ms)
            self._look_again()
            return
        if not joined:
            self.generation = self.generation.next_empty()
            self.state = GroupState.EMPTY
            outcome.records.append(self.generation.record(self.group_id, self.roster, now_ms))
            return
        self._timing.complete(now_ms, self.roster.longest_rebalance_ms)
        leader = self.generation.leader
        if leader not in {member.member_id for member in joined}:
            leader = joined[0].member_id
        number = self.generation.number + 1
        self.generation = replace(self.generation, number=number, protocol=self.roster.vote(), leader=leader)
        self.state = GroupState.COMPLETING
        for member in self.roster:
            member.has_synced = False
        for member in joined:
            outcome.reply(self.roster.await_join(member, None), self.generation.joined(member, self.roster))
            member.is_new = False
            member.heard(now_ms)
        self._look_again()

    def _wake(self, at_ms: int) -> None:
        self.due_ms = at_ms if self.due_ms is None else min(self.due_ms, at_ms)

    def _look_again(self) -> None:
        """Finds out when there is something to do next."""
        times = [member.expires_ms for member in self.roster if member.is_over(member.expires_ms)]
        times += self._told.values()
        times += self._timing.due_ms(is_under_way=self.state is GroupState.PREPARING)
        self.due_ms = min(times, default=None)
