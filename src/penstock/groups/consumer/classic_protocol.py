"""Classic members in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, answered from its state.

Their generation is their member epoch. The broker assigns partitions, so there is no leader and no waiting: a JoinGroup
is one step of reconciliation, and SyncGroup returns its result.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.cluster.metadata import MetadataImage
from penstock.errors import ApiError, Code, ProtocolError
from penstock.groups.consumer.deadlines import DeadlineKind
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.members import ClassicSide, ConsumerMember, MemberState
from penstock.groups.consumer.state import ConsumerStateDraft
from penstock.groups.events import Heartbeat, Join, Joined, Leaver, Outcome, Sync, Synced
from penstock.groups.rules import GroupRules
from penstock.groups.upgrade import from_names, to_bytes
from penstock.protocol.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    SUBSCRIPTION,
    ConsumerProtocolSubscription,
)


def join(group: ConsumerGroup, event: Join, rules: GroupRules, image: MetadataImage, now_ms: int) -> Outcome:
    """A classic member joins or rejoins; it is answered once that is written."""
    try:
        draft = ConsumerStateDraft(group.state)
        subscription = _understood(group, event, rules)
        member_id = event.member_id or rules.new_member_id(event.instance_id or event.client_id)
        if not event.member_id and event.must_know_its_id and event.instance_id is None:
            raise ApiError(Code.MEMBER_ID_REQUIRED, member_id)
        before = _admitted(group, draft, event, member_id)
        member = _described(before, event, subscription)
        group.advance(draft, member, from_names(subscription.owned_partitions, image), image)
    except ApiError as error:
        refused = Outcome()
        known_id = str(error) if error.code is Code.MEMBER_ID_REQUIRED else event.member_id
        refused.reply(event.token, Joined(code=error.code, member_id=known_id))
        return refused
    group.heard(member_id, now_ms)
    group.deadlines.clear(member_id, DeadlineKind.JOIN)
    group.deadlines.set(member_id, DeadlineKind.SYNC, now_ms + event.rebalance_timeout_ms)
    joined = Joined(
        generation=draft.state.current_of(member_id).epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol=event.protocols[0].name,
        member_id=member_id,
    )
    outcome = group.finish(draft, image, now_ms)
    outcome.reply(event.token, joined)
    return outcome


def sync(group: ConsumerGroup, event: Sync, image: MetadataImage, now_ms: int) -> Outcome:
    outcome = Outcome()
    code = _refusal(group, event.member_id, event.instance_id, event.generation)
    if code is not None:
        outcome.reply(event.token, Synced(code=code))
        return outcome
    classic = group.members[event.member_id].classic
    assert classic is not None
    current = group.state.current_of(event.member_id)
    protocol = classic.protocols[0].name
    if event.protocol_type not in (None, PROTOCOL_TYPE) or event.protocol not in (None, protocol):
        code = Code.INCONSISTENT_GROUP_PROTOCOL
    elif group.state.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        # A member with partitions to revoke has joined already, and must first learn what it keeps.
        _await_join(group, event.member_id, now_ms)
        code = Code.REBALANCE_IN_PROGRESS
    if code is not None:
        outcome.reply(event.token, Synced(code=code))
        return outcome
    group.heard(event.member_id, now_ms)
    group.deadlines.clear(event.member_id, DeadlineKind.SYNC)
    assignment = to_bytes(current.assigned, classic, image)
    outcome.reply(event.token, Synced(protocol_type=PROTOCOL_TYPE, protocol=protocol, assignment=assignment))
    return outcome


def heartbeat(group: ConsumerGroup, event: Heartbeat, now_ms: int) -> Code:
    """Tells the member to rejoin when it has partitions to gain or to give up."""
    code = _refusal(group, event.member_id, event.instance_id, event.generation)
    if code is not None:
        return code
    group.heard(event.member_id, now_ms)
    current = group.state.current_of(event.member_id)
    if (
        current.epoch < group.state.epoch
        or current.state is MemberState.UNREVOKED_PARTITIONS
        or (current.state is MemberState.UNRELEASED_PARTITIONS and not group.state.is_waiting(event.member_id))
    ):
        _await_join(group, event.member_id, now_ms)
        return Code.REBALANCE_IN_PROGRESS
    return Code.NONE


def leave(
    group: ConsumerGroup, leavers: tuple[Leaver, ...], image: MetadataImage, now_ms: int
) -> tuple[list[Code], Outcome]:
    """A result for each member that leaves or is removed by an administrator."""
    draft = ConsumerStateDraft(group.state)
    codes = []
    gone = []
    for leaver in leavers:
        member_id = leaver.member_id
        if not member_id and leaver.instance_id is not None:
            member_id = group.state.static_ids.get(leaver.instance_id, "")
        code = _identity_refusal(group, member_id, leaver.instance_id)
        if code is None and member_id in gone:
            code = Code.UNKNOWN_MEMBER_ID
        if code is None:
            gone.append(member_id)
        codes.append(code or Code.NONE)
    group.remove(draft, gone, image)
    return codes, group.finish(draft, image, now_ms)


def _understood(group: ConsumerGroup, event: Join, rules: GroupRules) -> ConsumerProtocolSubscription:
    """What a classic member wants; raises ApiError if it cannot be a member of this group."""
    if not rules.min_session_timeout_ms <= event.session_timeout_ms <= rules.max_session_timeout_ms:
        raise ApiError(Code.INVALID_SESSION_TIMEOUT)
    offered = {protocol.name for protocol in event.protocols}
    for member in group.members.values():
        if member.classic is not None and member.member_id != event.member_id:
            offered &= {protocol.name for protocol in member.classic.protocols}
    if event.protocol_type != PROTOCOL_TYPE or not offered:
        raise ApiError(Code.INCONSISTENT_GROUP_PROTOCOL)
    try:
        return SUBSCRIPTION.decode(event.protocols[0].metadata)
    except ProtocolError as error:
        raise ApiError(Code.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error


def _admitted(group: ConsumerGroup, draft: ConsumerStateDraft, event: Join, member_id: str) -> ConsumerMember:
    """The member that joins, as it was; a static one that has forgotten its id takes over from its former self."""
    if event.instance_id is not None:
        known_id = draft.state.static_ids.get(event.instance_id)
        if known_id is None and event.member_id:
            raise ApiError(Code.UNKNOWN_MEMBER_ID)
        if known_id is not None and known_id != member_id:
            if event.member_id:
                raise ApiError(Code.FENCED_INSTANCE_ID)
            group.replace_member(draft, known_id, member_id)
    return draft.state.members.get(member_id, ConsumerMember(member_id=member_id))


def _described(member: ConsumerMember, event: Join, subscription: ConsumerProtocolSubscription) -> ConsumerMember:
    return replace(
        member,
        instance_id=event.instance_id,
        rack_id=subscription.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        pattern=None,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        assignor=None,
        classic=ClassicSide(session_timeout_ms=event.session_timeout_ms, protocols=event.protocols),
    )


def _identity_refusal(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Code | None:
    if instance_id is not None:
        known_id = group.state.static_ids.get(instance_id)
        if known_id is None:
            return Code.UNKNOWN_MEMBER_ID
        if known_id != member_id:
            return Code.FENCED_INSTANCE_ID
    return None if member_id in group.members else Code.UNKNOWN_MEMBER_ID


def _refusal(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Code | None:
    """Why a request does not count as that of a classic member."""
    code = _identity_refusal(group, member_id, instance_id)
    if code is None and group.members[member_id].classic is None:
        code = Code.UNKNOWN_MEMBER_ID
    return code or group.check(member_id, generation)


def _await_join(group: ConsumerGroup, member_id: str, now_ms: int) -> None:
    at_ms = now_ms + group.members[member_id].rebalance_timeout_ms
    group.deadlines.set_if_absent(member_id, DeadlineKind.JOIN, at_ms)
