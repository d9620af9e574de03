"""ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

from penstock.broker.requests.context import RequestContext
from penstock.errors import ApiError, Code
from penstock.groups.classic.group import ClassicGroup, GroupState
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.group_types import kind, protocol_type, state_name
from penstock.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from penstock.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

_DEAD = "Dead"
_NOT_FOUND_FROM = 6
"""Before, a group that does not exist is described as dead, without an error."""
# Everything is allowed as long as there is no access control: read, delete, describe.
_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8
_NOT_ASKED = -(1 << 31)


class GroupAdminHandlers:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def list_groups(self, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        listed = []
        async for group in context.work.over(list(self._coordinator.groups())):
            if (not states or state_name(group).lower() in states) and (not types or kind(group) in types):
                await context.work.grow(1)
                listed.append(
                    ListedGroup(
                        group_id=group.group_id,
                        protocol_type=protocol_type(group),
                        group_state=state_name(group),
                        group_type=kind(group),
                    )
                )
        return ListGroupsResponse(groups=tuple(listed))

    async def describe_groups(self, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
        operations = operations_on_groups(is_asked=request.include_authorized_operations)
        described = []
        # A group is described once, however often it is named.
        async for group_id in context.work.over(dict.fromkeys(request.groups)):
            described.append(await self._describe(group_id, operations, context.version))
            await context.work.grow(1 + len(described[-1].members))
        return DescribeGroupsResponse(groups=tuple(described))

    async def delete_groups(self, request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
        results = []
        async for group_id in context.work.over(request.groups_names):
            try:
                code = await self._coordinator.delete_group(group_id)
            except ApiError as error:
                code = error.code
            results.append(DeletableGroupResult(group_id=group_id, error_code=code))
        return DeleteGroupsResponse(results=tuple(results))

    async def _describe(self, group_id: str, operations: int, version: int) -> DescribedGroup:
        try:
            group = await self._coordinator.find(group_id)
        except ApiError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=str(error))
        if not isinstance(group, ClassicGroup):
            code = Code.GROUP_ID_NOT_FOUND if version >= _NOT_FOUND_FROM else Code.NONE
            what = "not found" if group is None else "not a classic group"
            reason = f"Group {group_id} is {what}." if code else None
            return DescribedGroup(
                group_id=group_id,
                error_code=code,
                error_message=reason,
                group_state=_DEAD,
                authorized_operations=operations,
            )
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.generation.protocol_type,
            protocol_data=(group.generation.protocol or "") if group.state is GroupState.STABLE else "",
            members=_members(group),
            authorized_operations=operations,
        )


def operations_on_groups(*, is_asked: bool) -> int:
    """The operations that an answer lists as allowed."""
    return _OPERATIONS if is_asked else _NOT_ASKED


def _members(group: ClassicGroup) -> tuple[DescribedGroupMember, ...]:
    is_stable = group.state is GroupState.STABLE
    protocol = group.generation.protocol or ""
    return tuple(
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata_of(protocol) if is_stable else b"",
            member_assignment=group.generation.withheld.without(member.assignment) if is_stable else b"",
        )
        for member in group.members.values()
    )
