"""Groups of the new protocol (KIP-848): ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from __future__ import annotations

from penstock.broker.handlers.group_admin import operations_on_groups
from penstock.broker.requests.context import RequestContext
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code
from penstock.groups.consumer.assignment import Assignment, flat, topics_of
from penstock.groups.consumer.events import ConsumerHeartbeat
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.members import ConsumerMember
from penstock.groups.coordinator import GroupCoordinator
from penstock.protocol.messages import consumer_group_describe as describing
from penstock.protocol.messages import consumer_group_heartbeat as beating
from penstock.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from penstock.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_MEMBERS_NAME_THEMSELVES_FROM = 1


class ConsumerGroupHandlers:
    def __init__(self, coordinator: GroupCoordinator, metadata: MetadataChanges) -> None:
        self._coordinator = coordinator
        self._metadata = metadata

    async def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        if not request.group_id:
            return _refused(ApiError(Code.INVALID_REQUEST, "GroupId can't be empty."))
        owned = request.topic_partitions
        event = ConsumerHeartbeat(
            member_id=request.member_id,
            epoch=request.member_epoch,
            client_id=context.caller.client_id or "",
            client_host=f"/{context.caller.host}",
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=request.subscribed_topic_names,
            pattern=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=None if owned is None else flat((found.topic_id, found.partitions) for found in owned),
            must_bring_its_id=context.version >= _MEMBERS_NAME_THEMSELVES_FROM,
        )
        try:
            answer = await self._coordinator.consumer_heartbeat(request.group_id, event)
        except ApiError as error:
            return _refused(error)
        return ConsumerGroupHeartbeatResponse(
            member_id=answer.member_id,
            member_epoch=answer.epoch,
            heartbeat_interval_ms=answer.heartbeat_interval_ms,
            assignment=None if answer.assignment is None else _given(answer.assignment),
        )

    async def describe(
        self, request: ConsumerGroupDescribeRequest, context: RequestContext
    ) -> ConsumerGroupDescribeResponse:
        operations = operations_on_groups(is_asked=request.include_authorized_operations)
        described = []
        # A group is described once, however often it is named.
        async for group_id in context.work.over(dict.fromkeys(request.group_ids)):
            described.append(await self._describe(group_id, operations))
            await context.work.grow(1 + sum(map(_entries_of, described[-1].members)))
        return ConsumerGroupDescribeResponse(groups=tuple(described))

    async def _describe(self, group_id: str, operations: int) -> DescribedGroup:
        try:
            group = await self._coordinator.find(group_id)
            if not isinstance(group, ConsumerGroup):
                raise ApiError(Code.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        except ApiError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=str(error))
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.state.value,
            group_epoch=group.state.epoch,
            assignment_epoch=group.state.assignment_epoch,
            assignor_name=group.assignor,
            members=tuple(self._member(group, member) for member in group.members.values()),
            authorized_operations=operations,
        )

    def _member(self, group: ConsumerGroup, member: ConsumerMember) -> describing.Member:
        current = group.state.current_of(member.member_id)
        return describing.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=current.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.topics,
            subscribed_topic_regex=member.pattern,
            assignment=self._described(current.assigned),
            target_assignment=self._described(group.state.target_of(member.member_id)),
            member_type=describing.CONSUMER_MEMBER if member.classic is None else describing.CLASSIC_MEMBER,
        )

    def _described(self, assignment: Assignment) -> describing.Assignment:
        names = self._metadata.image.topic_names_by_id
        return describing.Assignment(
            topic_partitions=tuple(
                describing.TopicPartitions(topic_id=topic_id, topic_name=names[topic_id], partitions=partitions)
                for topic_id, partitions in topics_of(assignment)
                if topic_id in names
            )
        )


def _entries_of(member: describing.Member) -> int:
    assigned = (*member.assignment.topic_partitions, *member.target_assignment.topic_partitions)
    return 1 + sum(1 + len(topic.partitions) for topic in assigned)


def _given(assignment: Assignment) -> beating.Assignment:
    return beating.Assignment(
        topic_partitions=tuple(
            beating.TopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics_of(assignment)
        )
    )


def _refused(error: ApiError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=str(error))
