"""One group of the consumer protocol (KIP-848): heartbeats in, records and answers out.

`docs/internals/groups.md` draws the states. Durable state is in `state` and changes only in `apply`; an event is
decided on a draft of it. Deadlines of members are in memory only: they follow from the records and the heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster.metadata import MetadataImage
from penstock.config.group import group_config
from penstock.errors import ApiError, Code
from penstock.groups.consumer.assignment import Assignment
from penstock.groups.consumer.checks import check_assignor, check_pattern, check_room
from penstock.groups.consumer.deadlines import DeadlineKind, Deadlines
from penstock.groups.consumer.events import ConsumerHeartbeat, HeartbeatAnswer
from penstock.groups.consumer.members import ConsumerMember, Current, MemberState
from penstock.groups.consumer.reconciliation import reconcile
from penstock.groups.consumer.records import (
    ConsumerRecord,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
)
from penstock.groups.consumer.state import ConsumerState, ConsumerStateDraft
from penstock.groups.consumer.target import Topics, chosen_assignor
from penstock.groups.events import Outcome
from penstock.groups.pause import NOT_PAUSED, Pause
from penstock.groups.reset import ResetGuard
from penstock.groups.rules import GroupRules
from penstock.groups.upgrade import empty_classic, to_classic
from penstock.protocol.messages.consumer_group_heartbeat import JOIN, LEAVE_STATIC

_RETRY_MS = 1_000
"""After which a removal that could not be written is tried again."""


class _Admitted(NamedTuple):
    """A member that was let in with a heartbeat."""

    event: ConsumerHeartbeat
    member_id: str
    given: Current
    """What it had before."""
    reads_anew: bool
    """It is new, or reads other topics than before."""


class ConsumerGroup:
    """Invariant: if the group has members, at least one speaks the consumer protocol."""

    def __init__(self, group_id: str, rules: GroupRules) -> None:
        self.group_id = group_id
        self.state = ConsumerState(group_id)
        self.deadlines = Deadlines()
        self.emptied_ms = -1
        """When the last member went, or the group was loaded without any; offsets expire counting from here."""
        self.pause = NOT_PAUSED
        """Topics that are assigned to no member."""
        self.guard = ResetGuard()
        self._brokers_rules = self._rules = rules
        self._settings: Mapping[str, str] = {}
        self._topics = Topics()
        self._looked_at: int | None = None
        """The version of the image whose topics were compared with those of the epoch; None: look again."""

    @property
    def members(self) -> dict[str, ConsumerMember]:
        return self.state.members

    @property
    def assignor(self) -> str:
        return chosen_assignor(self.state, self._rules.consumer_assignors)

    def take_settings(self, image: MetadataImage) -> None:
        """What is set for this group goes before what is set for all."""
        settings = image.settings_by_group.get(self.group_id, {})
        if settings == self._settings:
            return
        self._settings = settings
        own, brokers = group_config(settings), self._brokers_rules
        self._rules = replace(
            brokers,
            consumer_session_timeout_ms=own.session_timeout_ms or brokers.consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=own.heartbeat_interval_ms or brokers.consumer_heartbeat_interval_ms,
        )

    def set_pause(self, pause: Pause, now_ms: int) -> Outcome:
        """From now on paused topics are assigned to no member; a new epoch begins at the next heartbeat."""
        self.pause = pause
        self._looked_at = None
        return Outcome()

    def fence_all(self, now_ms: int) -> Outcome:
        """Fences every member and leaves an empty group, which members that return make their own again."""
        record = replace(empty_classic(self.state, now_ms), is_reset=True)
        return Outcome(records=[*self.state.removal(), record], is_whole=True, fenced=len(self.members))

    def subscribed(self, image: MetadataImage) -> frozenset[str]:
        """The topics that the members read."""
        return self._topics.of_all(self.state, image)

    def check(self, member_id: str, epoch: int) -> Code | None:
        """Why a request does not count as the member's in this epoch; None if it does."""
        member = self.members.get(member_id)
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        if epoch == self.state.current_of(member_id).epoch:
            return None
        return Code.STALE_MEMBER_EPOCH if member.classic is None else Code.ILLEGAL_GENERATION

    def apply(self, record: ConsumerRecord, now_ms: int) -> None:
        """Takes in a record that is in the log."""
        self.state.apply(record)
        match record:
            case MemberRecord(_, member_id, None):
                self.deadlines.forget(member_id)
                if not self.members:
                    self.emptied_ms = now_ms
            case MemberRecord(_, member_id, ConsumerMember() as member):
                self.deadlines.set_if_absent(member_id, DeadlineKind.SESSION, now_ms + self._session_ms(member))
            case CurrentRecord(_, member_id, _):
                self._await_revocation(member_id, now_ms)

    def restart_sessions(self, now_ms: int) -> Outcome:
        """No member could be heard while the group was not loaded."""
        self.emptied_ms = now_ms
        for member_id, member in self.members.items():
            self.deadlines.set(member_id, DeadlineKind.SESSION, now_ms + self._session_ms(member))
            self._await_revocation(member_id, now_ms)
        return Outcome()

    def heard(self, member_id: str, now_ms: int) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self.deadlines.set(member_id, DeadlineKind.SESSION, now_ms + self._session_ms(member))

    def heartbeat(self, event: ConsumerHeartbeat, image: MetadataImage, now_ms: int) -> tuple[HeartbeatAnswer, Outcome]:
        """Raises ApiError if the member is refused."""
        if event.is_leave:
            event.check()
            self.take_settings(image)
            return self._leave(event, ConsumerStateDraft(self.state), image, now_ms)
        (answer,), outcome = self.heartbeats([event], image, now_ms)
        if isinstance(answer, ApiError):
            raise answer
        return answer, outcome

    def heartbeats(
        self,
        events: Sequence[ConsumerHeartbeat],
        image: MetadataImage,
        now_ms: int,
        draft: ConsumerStateDraft | None = None,
    ) -> tuple[list[HeartbeatAnswer | ApiError], Outcome]:
        """Heartbeats of members that stay, as one event: all who join get parts of the same plan. A member that is
        refused gets an error; if all are, nothing happens. `draft` has what goes before in the same event.
        """
        draft = draft or ConsumerStateDraft(self.state)
        self.take_settings(image)
        admitted: list[_Admitted | ApiError] = []
        for event in events:
            try:
                admitted.append(self._enter(draft, event))
            except ApiError as error:
                admitted.append(error)
        entered = [each for each in admitted if isinstance(each, _Admitted)]
        if not entered:
            return [each for each in admitted if isinstance(each, ApiError)], Outcome()
        self._plan(draft, image, is_needed=any(each.reads_anew for each in entered))
        answers = [each if isinstance(each, ApiError) else self._answer(draft, each, now_ms) for each in admitted]
        return answers, self.finish(draft, image, now_ms)

    def replace_member(self, draft: ConsumerStateDraft, member_id: str, new_id: str) -> None:
        """A static member goes on under a new id, with what it had."""
        member, current = draft.state.members[member_id], draft.state.current_of(member_id)
        target = draft.state.target_of(member_id)
        draft.write(
            *draft.state.removal_of(member_id),
            MemberRecord(self.group_id, new_id, replace(member, member_id=new_id)),
            TargetRecord(self.group_id, new_id, target),
            CurrentRecord(self.group_id, new_id, replace(current, epoch=JOIN, previous_epoch=JOIN)),
        )

    def advance(
        self, draft: ConsumerStateDraft, member: ConsumerMember, owned: Assignment | None, image: MetadataImage
    ) -> None:
        """The member into the epoch, the epoch into the target, the target into what the member has."""
        self._plan(draft, image, is_needed=self._describe(draft, member))
        self._move(draft, member.member_id, owned)

    def _enter(self, draft: ConsumerStateDraft, event: ConsumerHeartbeat) -> _Admitted:
        """Takes in what a member says of itself; raises ApiError, and has written nothing, if the member is refused."""
        event.check()
        check_assignor(event.assignor, self._rules)
        member_id = event.member_id or self._rules.new_member_id(event.client_id)
        before, replaces = self._admit(event, member_id, draft.state)
        member = _updated(before, event)
        if member.pattern != before.pattern:
            check_pattern(member.pattern, self._rules)
        if replaces is not None:
            check_room(draft.state, before, member, self._rules)
            self.replace_member(draft, replaces, member_id)
        given = draft.state.current_of(member_id)
        return _Admitted(event, member_id, given, reads_anew=self._describe(draft, member))

    def _describe(self, draft: ConsumerStateDraft, member: ConsumerMember) -> bool:
        """Writes down a member as it is now; whether it is new or reads other topics than before."""
        before = draft.state.members.get(member.member_id)
        if member != before:
            check_room(draft.state, before, member, self._rules)
            draft.write(MemberRecord(self.group_id, member.member_id, member))
        return before is None or (before.topics, before.pattern) != (member.topics, member.pattern)

    def _answer(self, draft: ConsumerStateDraft, admitted: _Admitted, now_ms: int) -> HeartbeatAnswer:
        event, member_id, given, _ = admitted
        current = self._move(draft, member_id, event.owned)
        self.heard(member_id, now_ms)
        is_told = event.is_full or current.assigned != given.assigned or event.epoch != given.epoch
        return HeartbeatAnswer(
            member_id=member_id,
            epoch=current.epoch,
            heartbeat_interval_ms=self._rules.consumer_heartbeat_interval_ms,
            assignment=current.assigned if is_told else None,
        )

    def _plan(self, draft: ConsumerStateDraft, image: MetadataImage, *, is_needed: bool) -> None:
        """A new epoch if it is needed, and the targets that belong to the epoch."""
        self._begin_epoch(draft, image, is_needed=is_needed)
        state = draft.state
        if state.epoch > state.assignment_epoch:
            assignor = chosen_assignor(state, self._rules.consumer_assignors)
            plan = self._topics.plan(state, image, self.pause, assignor)
            draft.write(
                *(
                    TargetRecord(self.group_id, planned_for, target)
                    for planned_for, target in plan.items()
                    if target != state.targets.get(planned_for)
                ),
                TargetEpochRecord(self.group_id, state.epoch),
            )

    def _move(self, draft: ConsumerStateDraft, member_id: str, owned: Assignment | None) -> Current:
        """Brings a member towards its target; gives what it has then."""
        state = draft.state
        current = state.current_of(member_id)
        target = state.target_of(member_id)
        moved = reconcile(current, state.assignment_epoch, target, owned, state.free_of)
        if moved != current:
            draft.write(CurrentRecord(self.group_id, member_id, moved))
        return moved

    def remove(self, draft: ConsumerStateDraft, member_ids: list[str], image: MetadataImage) -> None:
        for member_id in member_ids:
            draft.write(*draft.state.removal_of(member_id))
        if member_ids:
            self._begin_epoch(draft, image, is_needed=True)

    def finish(self, draft: ConsumerStateDraft, image: MetadataImage, now_ms: int) -> Outcome:
        """The records of an event; a group without members of the new protocol becomes a classic one."""
        outcome = Outcome(records=[*draft.records], is_whole=True)
        if draft.changes_members and draft.state.is_all_classic:
            outcome.records += [*draft.state.removal(), to_classic(draft.state, image, now_ms)]
        return outcome

    def tick(self, image: MetadataImage, now_ms: int) -> Outcome:
        """Removes the members that missed their deadline."""
        draft = ConsumerStateDraft(self.state)
        over = self.deadlines.over(now_ms, _RETRY_MS)
        for member_id in over:
            if member_id not in self.members:
                self.deadlines.forget(member_id)  # its joining was never written
        gone = [member_id for member_id in over if member_id in self.members]
        self.remove(draft, gone, image)
        outcome = self.finish(draft, image, now_ms)
        outcome.expired = len(gone)
        return outcome

    def _admit(
        self, event: ConsumerHeartbeat, member_id: str, state: ConsumerState
    ) -> tuple[ConsumerMember, str | None]:
        """The member that sends a heartbeat, as it was, and its former id if it is a static one that has another now;
        raises ApiError if it may not.
        """
        if event.instance_id is not None:
            known_id = state.static_ids.get(event.instance_id)
            if known_id is None and event.epoch != JOIN:
                raise ApiError(Code.UNKNOWN_MEMBER_ID, f"Instance id {event.instance_id} is unknown.")
            if known_id is not None and known_id != member_id:
                if event.epoch != JOIN:
                    raise _fenced_instance(event.instance_id, known_id)
                is_away = state.current_of(known_id).epoch == LEAVE_STATIC
                if not is_away and state.members[known_id].classic is None:
                    reason = f"Instance id {event.instance_id} is owned by member {known_id}."
                    raise ApiError(Code.UNRELEASED_INSTANCE_ID, reason)
                return replace(state.members[known_id], member_id=member_id), known_id
        member = state.members.get(member_id)
        if member is None:
            if event.epoch != JOIN:
                raise ApiError(Code.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group.")
            return ConsumerMember(member_id=member_id), None
        self._check_epoch(event, state)
        return member, None

    def _check_epoch(self, event: ConsumerHeartbeat, state: ConsumerState) -> None:
        current = state.current_of(event.member_id)
        if event.epoch in (JOIN, current.epoch):
            # A member that joins again has given up everything, whatever we think it has.
            return
        missed_an_answer = event.epoch == current.previous_epoch and event.epoch < current.epoch
        if not missed_an_answer or event.owned is None or not event.owned <= current.assigned:
            reason = f"Member epoch {event.epoch} is not {current.epoch}: give up all partitions and join again."
            raise ApiError(Code.FENCED_MEMBER_EPOCH, reason)

    def _leave(
        self, event: ConsumerHeartbeat, draft: ConsumerStateDraft, image: MetadataImage, now_ms: int
    ) -> tuple[HeartbeatAnswer, Outcome]:
        answer = HeartbeatAnswer(member_id=event.member_id, epoch=event.epoch)
        if event.instance_id is not None:
            known_id = draft.state.static_ids.get(event.instance_id)
            if known_id is None:
                raise ApiError(Code.UNKNOWN_MEMBER_ID, f"Instance id {event.instance_id} is unknown.")
            if known_id != event.member_id:
                raise _fenced_instance(event.instance_id, known_id)
        if event.member_id not in draft.state.members:
            raise ApiError(Code.UNKNOWN_MEMBER_ID, f"Member {event.member_id} is not a member of the group.")
        if event.epoch == LEAVE_STATIC:
            away = draft.state.current_of(event.member_id).left_for_now(LEAVE_STATIC)
            draft.write(CurrentRecord(self.group_id, event.member_id, away))
        else:
            self.remove(draft, [event.member_id], image)
        return answer, self.finish(draft, image, now_ms)

    def _begin_epoch(self, draft: ConsumerStateDraft, image: MetadataImage, *, is_needed: bool) -> None:
        """The group epoch rises if it must, or if the topics are not what they were when it began."""
        if not is_needed and self._looked_at == image.version:
            return
        topics_hash = self._topics.hash_of(draft.state, image, self.pause)
        if is_needed or topics_hash != draft.state.topics_hash:
            draft.write(EpochRecord(self.group_id, GroupEpoch(draft.state.epoch + 1, topics_hash)))
            self._looked_at = None
        else:
            self._looked_at = image.version

    def _session_ms(self, member: ConsumerMember) -> int:
        return self._rules.consumer_session_timeout_ms if member.classic is None else member.classic.session_timeout_ms

    def _await_revocation(self, member_id: str, now_ms: int) -> None:
        """A classic member that has to let go of something is waited for to join again instead."""
        member, current = self.members.get(member_id), self.state.current_of(member_id)
        if member is None or member.classic is not None or current.state is not MemberState.UNREVOKED_PARTITIONS:
            self.deadlines.clear(member_id, DeadlineKind.REVOKE)
        else:
            self.deadlines.set(member_id, DeadlineKind.REVOKE, now_ms + member.rebalance_timeout_ms)


def _updated(member: ConsumerMember, event: ConsumerHeartbeat) -> ConsumerMember:
    """The member as it describes itself now."""
    if _says_nothing_new(event, member):
        return member
    return replace(
        member,
        instance_id=member.instance_id if event.instance_id is None else event.instance_id,
        rack_id=member.rack_id if event.rack_id is None else event.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        topics=member.topics if event.topics is None else tuple(sorted(set(event.topics))),
        pattern=member.pattern if event.pattern is None else event.pattern,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if event.rebalance_timeout_ms == -1 else event.rebalance_timeout_ms
        ),
        assignor=member.assignor if event.assignor is None else event.assignor,
        classic=None,
    )


def _says_nothing_new(event: ConsumerHeartbeat, member: ConsumerMember) -> bool:
    """Whether it is only a sign of life, as most heartbeats are."""
    return (
        event.topics is None
        and event.pattern is None
        and event.rebalance_timeout_ms == -1
        and event.assignor is None
        and event.rack_id is None
        and event.instance_id in (None, member.instance_id)
        and member.classic is None
        and (event.client_id, event.client_host) == (member.client_id, member.client_host)
    )


def _fenced_instance(instance_id: str, known_id: str) -> ApiError:
    return ApiError(Code.FENCED_INSTANCE_ID, f"Instance id {instance_id} was fenced by member {known_id}.")
