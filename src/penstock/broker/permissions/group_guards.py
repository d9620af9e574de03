"""Guards of calls about consumer groups and their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.broker.permissions.access import Access
from penstock.broker.permissions.guard import EachItem, Handler, Need, WholeRequest
from penstock.broker.requests.context import RequestContext
from penstock.errors import ApiError, Code
from penstock.groups.reset import asks_for_reset
from penstock.protocol.messages import consumer_group_describe as describing
from penstock.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from penstock.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from penstock.protocol.messages.find_coordinator import (
    GROUP,
    TRANSACTION,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.protocol.messages.heartbeat import HeartbeatResponse
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.protocol.messages.leave_group import LeaveGroupResponse
from penstock.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from penstock.protocol.messages.sync_group import SyncGroupResponse
from penstock.security.acls import CLUSTER_NAME, Operation, ResourceType

_GROUP = ResourceType.GROUP
_TOPIC = ResourceType.TOPIC
_TOPIC_IDS_FROM = 10
_MANY_FROM = 8
_PARTITION_ERRORS_UNTIL = 3
_MANY_COORDINATORS_FROM = 4
_NULL_PROTOCOL_FROM = 7
_DENIED = "Group authorization failed."


def _of_group(refuse: Any) -> WholeRequest:
    """READ on the group: what its members need."""
    return WholeRequest(lambda request: ((Need(Operation.READ, _GROUP), request.group_id),), refuse)


def _not_joined(request: JoinGroupRequest, context: RequestContext, code: Code) -> JoinGroupResponse:
    protocol = None if context.version >= _NULL_PROTOCOL_FROM else ""
    return JoinGroupResponse(error_code=code, member_id=request.member_id, protocol_name=protocol)


join_group = _of_group(_not_joined)
sync_group = _of_group(lambda request, context, code: SyncGroupResponse(error_code=code))
heartbeat = _of_group(lambda request, context, code: HeartbeatResponse(error_code=code))
leave_group = _of_group(lambda request, context, code: LeaveGroupResponse(error_code=code))
delete_groups = EachItem(
    Need(Operation.DELETE, _GROUP),
    "groups_names",
    str,
    "results",
    lambda name, code: DeletableGroupResult(group_id=name, error_code=code),
    DeleteGroupsResponse,
)


async def list_groups(
    request: ListGroupsRequest, context: RequestContext, access: Access, handler: Handler
) -> ListGroupsResponse:
    """Those that may be described; DESCRIBE on the cluster shows all."""
    response: ListGroupsResponse = await handler(request, context)
    if access.sees(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return response
    groups = [
        group
        async for group in context.work.over(response.groups)
        if access.sees(Operation.DESCRIBE, _GROUP, group.group_id)
    ]
    return replace(response, groups=tuple(groups))


async def describe_groups(
    request: DescribeGroupsRequest, context: RequestContext, access: Access, handler: Handler
) -> DescribeGroupsResponse:
    guard = EachItem(
        Need(Operation.DESCRIBE, _GROUP),
        "groups",
        str,
        "groups",
        lambda name, code: DescribedGroup(group_id=name, error_code=code, error_message=_DENIED),
        DescribeGroupsResponse,
    )
    response: DescribeGroupsResponse = await guard(request, context, access, handler)
    return _with_operations(response, access) if request.include_authorized_operations else response


async def consumer_group_describe(
    request: describing.ConsumerGroupDescribeRequest, context: RequestContext, access: Access, handler: Handler
) -> describing.ConsumerGroupDescribeResponse:
    """DESCRIBE on the group, and on every topic that its members read."""
    guard = EachItem(
        Need(Operation.DESCRIBE, _GROUP),
        "group_ids",
        str,
        "groups",
        lambda name, code: describing.DescribedGroup(group_id=name, error_code=code, error_message=_DENIED),
        describing.ConsumerGroupDescribeResponse,
    )
    response: describing.ConsumerGroupDescribeResponse = await guard(request, context, access, handler)
    groups = [_with_seen_topics(group, access) async for group in context.work.over(response.groups)]
    response = replace(response, groups=tuple(groups))
    return _with_operations(response, access) if request.include_authorized_operations else response


def _with_seen_topics(group: describing.DescribedGroup, access: Access) -> describing.DescribedGroup:
    topics = {
        topic
        for member in group.members
        for topic in (
            *member.subscribed_topic_names,
            *(each.topic_name for each in member.assignment.topic_partitions),
            *(each.topic_name for each in member.target_assignment.topic_partitions),
        )
    }
    if all(access.may(Operation.DESCRIBE, _TOPIC, topic) for topic in topics):
        return group
    return describing.DescribedGroup(
        group_id=group.group_id,
        error_code=Code.TOPIC_AUTHORIZATION_FAILED,
        error_message="The members of the group read topics that the client is not authorized to describe.",
    )


def _with_operations(response: Any, access: Access) -> Any:
    return replace(
        response,
        groups=tuple(
            group
            if group.error_code
            else replace(group, authorized_operations=access.operations(_GROUP, group.group_id))
            for group in response.groups
        ),
    )


async def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext, access: Access, handler: Handler
) -> ConsumerGroupHeartbeatResponse:
    """READ on the group, DESCRIBE on the topics that are subscribed to by name.

    The coordinator resolves a pattern for all members. If it assigns a member a topic that the member may not describe,
    the answer is an error that does not name the topic.
    """
    code = access.refusal(Operation.READ, _GROUP, request.group_id)
    if code is Code.NONE:
        for topic in request.subscribed_topic_names or ():
            if not access.may(Operation.DESCRIBE, _TOPIC, topic):
                code = Code.TOPIC_AUTHORIZATION_FAILED
                break
    if code is not Code.NONE:
        return ConsumerGroupHeartbeatResponse(error_code=code, error_message="Not authorized.")
    response: ConsumerGroupHeartbeatResponse = await handler(request, context)
    for assigned in () if response.assignment is None else response.assignment.topic_partitions:
        name = access.topic_of(assigned.topic_id)
        if name is not None and not access.may(Operation.DESCRIBE, _TOPIC, name):
            return ConsumerGroupHeartbeatResponse(
                error_code=Code.TOPIC_AUTHORIZATION_FAILED,
                error_message="The subscription pattern matches topics that the client is not authorized to describe.",
            )
    return response


async def find_coordinator(
    request: FindCoordinatorRequest, context: RequestContext, access: Access, handler: Handler
) -> FindCoordinatorResponse:
    """DESCRIBE on the group or the transactional id."""
    type_ = {GROUP: _GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}.get(request.key_type)
    if type_ is None:
        refused: FindCoordinatorResponse = await handler(request, context)
        return refused
    if context.version < _MANY_COORDINATORS_FROM:
        code = access.refusal(Operation.DESCRIBE, type_, request.key)
        if code is not Code.NONE:
            return FindCoordinatorResponse(error_code=code, error_message="Not authorized.")
        found: FindCoordinatorResponse = await handler(request, context)
        return found
    guard = EachItem(
        Need(Operation.DESCRIBE, type_),
        "coordinator_keys",
        str,
        "coordinators",
        lambda key, code: Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=code, error_message="Not authorized."
        ),
        FindCoordinatorResponse,
    )
    many: FindCoordinatorResponse = await guard(request, context, access, handler)
    return many


async def offset_commit(
    request: OffsetCommitRequest, context: RequestContext, access: Access, handler: Handler
) -> OffsetCommitResponse:
    """READ on the group and on each topic. A reset of a running group is for all of its topics or for none."""
    code = access.refusal(Operation.READ, _GROUP, request.group_id)
    if code is not Code.NONE:
        return OffsetCommitResponse(topics=tuple(_not_committed(topic, code) for topic in request.topics))
    allowed: list[OffsetCommitRequestTopic] = []
    denied: list[OffsetCommitResponseTopic] = []
    async for topic in context.work.over(request.topics):
        name = access.topic_of(topic.topic_id) if context.version >= _TOPIC_IDS_FROM else topic.name
        if name is None or access.may(Operation.READ, _TOPIC, name):
            allowed.append(topic)
        else:
            denied.append(_not_committed(topic, Code.TOPIC_AUTHORIZATION_FAILED))
    if not denied:
        response: OffsetCommitResponse = await handler(request, context)
        return response
    if not allowed:
        return OffsetCommitResponse(topics=tuple(denied))
    if _is_reset(request):
        not_tried = (_not_committed(topic, Code.OPERATION_NOT_ATTEMPTED) for topic in allowed)
        return OffsetCommitResponse(topics=(*not_tried, *denied))
    response = await handler(replace(request, topics=tuple(allowed)), context)
    return replace(response, topics=(*response.topics, *denied))


def _is_reset(request: OffsetCommitRequest) -> bool:
    try:
        return asks_for_reset(each.committed_metadata or "" for topic in request.topics for each in topic.partitions)
    except ApiError:
        return True


def _not_committed(topic: OffsetCommitRequestTopic, code: Code) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ),
    )


async def offset_fetch(
    request: OffsetFetchRequest, context: RequestContext, access: Access, handler: Handler
) -> OffsetFetchResponse:
    """DESCRIBE on each group and each topic; of all topics those are shown that may be described."""
    if context.version < _MANY_FROM:
        return await _fetch_of_one(request, context, access, handler)
    allowed: list[OffsetFetchRequestGroup] = []
    hidden: list[list[OffsetFetchResponseTopics]] = []
    refused: list[OffsetFetchResponseGroup] = []
    async for group in context.work.over(request.groups):
        code = access.refusal(Operation.DESCRIBE, _GROUP, group.group_id)
        if code is not Code.NONE:
            refused.append(OffsetFetchResponseGroup(group_id=group.group_id, error_code=code))
            continue
        topics, denied = await _split(group.topics, context, access)
        hidden.append(denied)
        allowed.append(group if not denied else replace(group, topics=topics))
    if not allowed:
        return OffsetFetchResponse(groups=tuple(refused))
    response: OffsetFetchResponse = await handler(replace(request, groups=tuple(allowed)), context)
    answers = [
        found if found.error_code else replace(found, topics=(*_seen(found.topics, access), *denied))
        for found, denied in zip(response.groups, hidden, strict=True)
    ]
    return replace(response, groups=(*answers, *refused))


async def _fetch_of_one(
    request: OffsetFetchRequest, context: RequestContext, access: Access, handler: Handler
) -> OffsetFetchResponse:
    code = access.refusal(Operation.DESCRIBE, _GROUP, request.group_id)
    if code is not Code.NONE:
        is_told_each = context.version <= _PARTITION_ERRORS_UNTIL
        topics = (_not_fetched(topic, code) for topic in request.topics or ()) if is_told_each else ()
        return OffsetFetchResponse(topics=tuple(_old(topic) for topic in topics), error_code=code)
    asked = request.topics
    denied = [
        topic
        async for topic in context.work.over(asked or ())
        if not access.may(Operation.DESCRIBE, _TOPIC, topic.name)
    ]
    if denied:
        allowed = tuple(topic for topic in asked or () if topic not in denied)
        response: OffsetFetchResponse = await handler(replace(request, topics=allowed), context)
    else:
        response = await handler(request, context)
    seen = [topic for topic in response.topics if access.sees(Operation.DESCRIBE, _TOPIC, topic.name)]
    refused = (_old(_not_fetched(topic, Code.TOPIC_AUTHORIZATION_FAILED)) for topic in denied)
    return replace(response, topics=(*seen, *refused))


async def _split(
    topics: Sequence[OffsetFetchRequestTopics] | None, context: RequestContext, access: Access
) -> tuple[tuple[OffsetFetchRequestTopics, ...] | None, list[OffsetFetchResponseTopics]]:
    """The topics that may be described, and the answers for the others; None, for all topics, stays."""
    if topics is None:
        return None, []
    allowed: list[OffsetFetchRequestTopics] = []
    denied: list[OffsetFetchResponseTopics] = []
    async for topic in context.work.over(topics):
        name = access.topic_of(topic.topic_id) if context.version >= _TOPIC_IDS_FROM else topic.name
        if name is None or access.may(Operation.DESCRIBE, _TOPIC, name):
            allowed.append(topic)
        else:
            denied.append(_not_fetched(topic, Code.TOPIC_AUTHORIZATION_FAILED))
    return tuple(allowed), denied


def _seen(topics: Sequence[OffsetFetchResponseTopics], access: Access) -> list[OffsetFetchResponseTopics]:
    found = []
    for topic in topics:
        name = topic.name or access.topic_of(topic.topic_id)
        if name is None or access.sees(Operation.DESCRIBE, _TOPIC, name):
            found.append(topic)
    return found


def _not_fetched(topic: Any, code: Code) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        **({"topic_id": topic.topic_id} if isinstance(topic, OffsetFetchRequestTopics) else {}),
        partitions=tuple(
            OffsetFetchResponsePartition(partition_index=index, error_code=code) for index in topic.partition_indexes
        ),
    )


def _old(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(name=topic.name, partitions=topic.partitions)


async def offset_delete(
    request: OffsetDeleteRequest, context: RequestContext, access: Access, handler: Handler
) -> OffsetDeleteResponse:
    """DELETE on the group, READ on each topic."""
    code = access.refusal(Operation.DELETE, _GROUP, request.group_id)
    if code is not Code.NONE:
        return OffsetDeleteResponse(error_code=code)
    guard = EachItem(
        Need(Operation.READ, _TOPIC),
        "topics",
        lambda topic: str(topic.name),
        "topics",
        lambda topic, code: OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=tuple(
                OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=code)
                for each in topic.partitions
            ),
        ),
        OffsetDeleteResponse,
    )
    response: OffsetDeleteResponse = await guard(request, context, access, handler)
    return response
