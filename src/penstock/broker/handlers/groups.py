"""Membership of consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from penstock.broker.requests.context import RequestContext
from penstock.errors import ApiError, Code
from penstock.groups.classic.members import Protocol
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.events import Heartbeat, Join, Leaver, Sync
from penstock.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from penstock.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from penstock.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_MEMBER_ID_REQUIRED_FROM = 4
_SKIP_ASSIGNMENT_FROM = 9
_MANY_LEAVERS_FROM = 3
_NULL_PROTOCOL_FROM = 7


class GroupHandlers:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def join_group(self, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
        if not request.group_id:
            return _not_joined(Code.INVALID_GROUP_ID, request.member_id, context.version)
        rebalance_ms = request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms

        def event(token: object) -> Join:
            return Join(
                token=token,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                client_id=context.caller.client_id or "",
                client_host=f"/{context.caller.host}",
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=request.protocol_type,
                protocols=tuple(Protocol(offered.name, offered.metadata) for offered in request.protocols),
                must_know_its_id=context.version >= _MEMBER_ID_REQUIRED_FROM,
                can_skip_assignment=context.version >= _SKIP_ASSIGNMENT_FROM,
            )

        joined = await self._coordinator.join(request.group_id, event)
        if joined.code is not Code.NONE:
            return _not_joined(joined.code, joined.member_id, context.version)
        return JoinGroupResponse(
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol,
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=tuple(
                JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
                for member_id, instance_id, metadata in joined.members
            ),
        )

    async def sync_group(self, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
        if not request.group_id:
            return SyncGroupResponse(error_code=Code.INVALID_GROUP_ID)

        def event(token: object) -> Sync:
            return Sync(
                token=token,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
                assignments=tuple((planned.member_id, planned.assignment) for planned in request.assignments),
            )

        synced = await self._coordinator.sync(request.group_id, event)
        return SyncGroupResponse(
            error_code=synced.code,
            protocol_type=synced.protocol_type,
            protocol_name=synced.protocol,
            assignment=synced.assignment,
        )

    async def heartbeat(self, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        if not request.group_id:
            return HeartbeatResponse(error_code=Code.INVALID_GROUP_ID)
        event = Heartbeat(
            member_id=request.member_id, instance_id=request.group_instance_id, generation=request.generation_id
        )
        try:
            code = await self._coordinator.heartbeat(request.group_id, event)
        except ApiError as error:
            # Sessions begin anew when a group is loaded. Kafka answers like this too, and there are clients that take
            # any other answer for the end (aiokafka).
            code = Code.NONE if error.code is Code.COORDINATOR_LOAD_IN_PROGRESS else error.code
        return HeartbeatResponse(error_code=code)

    async def leave_group(self, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
        if not request.group_id:
            return LeaveGroupResponse(error_code=Code.INVALID_GROUP_ID)
        many = context.version >= _MANY_LEAVERS_FROM
        asked = request.members if many else (MemberIdentity(member_id=request.member_id),)
        leavers = tuple(Leaver(member.member_id, member.group_instance_id) for member in asked)
        try:
            codes = await self._coordinator.leave(request.group_id, leavers)
        except ApiError as error:
            return LeaveGroupResponse(error_code=error.code)
        if not many:
            return LeaveGroupResponse(error_code=codes[0])
        return LeaveGroupResponse(
            members=tuple(
                MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=code)
                for leaver, code in zip(leavers, codes, strict=True)
            )
        )


def _not_joined(code: Code, member_id: str, version: int) -> JoinGroupResponse:
    protocol = None if version >= _NULL_PROTOCOL_FROM else ""
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=protocol)
