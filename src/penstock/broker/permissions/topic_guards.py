"""Guards of calls about topics, their records and what the cluster looks like."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from penstock.broker.permissions.access import Access
from penstock.broker.permissions.guard import EachItem, Handler, Need
from penstock.broker.requests.context import RequestContext
from penstock.cluster import timer_topics
from penstock.cluster.metadata import INTERNAL_TOPICS
from penstock.config.view import VIEW_OF_SETTING
from penstock.errors import Code
from penstock.ids import NO_TOPIC_ID
from penstock.protocol.messages.create_partitions import CreatePartitionsResponse, CreatePartitionsTopicResult
from penstock.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.protocol.messages.describe_producers import DescribeProducersResponse, PartitionResponse, TopicResponse
from penstock.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from penstock.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from penstock.security.acls import CLUSTER_NAME, Operation, ResourceType
from penstock.security.principal import Principal

_TOPIC = ResourceType.TOPIC
_KEPT_ANSWERS = 256
_TOPIC_IDS_SINCE = 12
_DENIED = "Topic authorization failed."

list_offsets = EachItem(
    Need(Operation.DESCRIBE, _TOPIC),
    "topics",
    lambda topic: str(topic.name),
    "topics",
    lambda topic, code: ListOffsetsTopicResponse(
        name=topic.name,
        partitions=tuple(
            ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ),
    ),
    ListOffsetsResponse,
)
offset_for_leader_epoch = EachItem(
    Need(Operation.DESCRIBE, _TOPIC),
    "topics",
    lambda topic: str(topic.topic),
    "topics",
    lambda topic, code: OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=tuple(EpochEndOffset(partition=each.partition, error_code=code) for each in topic.partitions),
    ),
    OffsetForLeaderEpochResponse,
)
delete_records = EachItem(
    Need(Operation.DELETE, _TOPIC),
    "topics",
    lambda topic: str(topic.name),
    "topics",
    lambda topic, code: DeleteRecordsTopicResult(
        name=topic.name,
        partitions=tuple(
            DeleteRecordsPartitionResult(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ),
    ),
    DeleteRecordsResponse,
)
describe_producers = EachItem(
    Need(Operation.READ, _TOPIC),
    "topics",
    lambda topic: str(topic.name),
    "topics",
    lambda topic, code: TopicResponse(
        name=topic.name,
        partitions=tuple(
            PartitionResponse(partition_index=index, error_code=code, error_message=_DENIED)
            for index in dict.fromkeys(topic.partition_indexes)
        ),
    ),
    DescribeProducersResponse,
)
create_partitions = EachItem(
    Need(Operation.ALTER, _TOPIC),
    "topics",
    lambda topic: str(topic.name),
    "results",
    lambda topic, code: CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=_DENIED),
    CreatePartitionsResponse,
)


async def create_topics(
    request: CreateTopicsRequest, context: RequestContext, access: Access, handler: Handler
) -> CreateTopicsResponse:
    """CREATE on the cluster or the topic; for a view also READ on its base, whose records it shows."""
    denied: dict[str, CreatableTopicResult] = {}
    async for topic in context.work.over(request.topics):
        if not _may_create(topic, access):
            denied[topic.name] = CreatableTopicResult(
                name=topic.name, error_code=Code.TOPIC_AUTHORIZATION_FAILED, error_message=_DENIED
            )
    allowed = tuple(topic for topic in request.topics if topic.name not in denied)
    if not allowed and denied:
        return CreateTopicsResponse(topics=tuple(denied.values()))
    response: CreateTopicsResponse = await handler(replace(request, topics=allowed) if denied else request, context)
    created = [_with_permitted_configs(result, access) for result in response.topics]
    return replace(response, topics=(*created, *denied.values()))


def _may_create(topic: CreatableTopic, access: Access) -> bool:
    base = next((config.value for config in topic.configs if config.name == VIEW_OF_SETTING), None)
    return access.may_create(topic.name) and (not base or access.may(Operation.READ, _TOPIC, base))


def _with_permitted_configs(result: CreatableTopicResult, access: Access) -> CreatableTopicResult:
    if result.error_code or access.sees(Operation.DESCRIBE_CONFIGS, _TOPIC, result.name):
        return result
    return replace(
        result,
        topic_config_error_code=Code.TOPIC_AUTHORIZATION_FAILED,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )


async def delete_topics(
    request: DeleteTopicsRequest, context: RequestContext, access: Access, handler: Handler
) -> DeleteTopicsResponse:
    """DELETE on the topic. One that is meant by its id is not called by its name unless it may be described."""
    denied: list[DeletableTopicResult] = []
    names: list[str] = []
    states: list[DeleteTopicState] = []
    for name in request.topic_names:
        if access.may(Operation.DELETE, _TOPIC, name):
            names.append(name)
        else:
            denied.append(_not_deleted(name))
    async for topic in context.work.over(request.topics):
        known = topic.name if topic.name is not None else access.topic_of(topic.topic_id)
        if known is None or access.may(Operation.DELETE, _TOPIC, known):
            states.append(topic)
        elif topic.name is not None or access.sees(Operation.DESCRIBE, _TOPIC, known):
            denied.append(replace(_not_deleted(known), topic_id=topic.topic_id))
        else:
            denied.append(replace(_not_deleted(None), topic_id=topic.topic_id))
    if not denied:
        response: DeleteTopicsResponse = await handler(request, context)
        return response
    if not names and not states:
        return DeleteTopicsResponse(responses=tuple(denied))
    response = await handler(replace(request, topic_names=tuple(names), topics=tuple(states)), context)
    return replace(response, responses=(*response.responses, *denied))


def _not_deleted(name: str | None) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, error_code=Code.TOPIC_AUTHORIZATION_FAILED, error_message=_DENIED)


class _Kept(NamedTuple):
    response: MetadataResponse
    seen: MetadataResponse


class MetadataGuard:
    """DESCRIBE on each topic. Of all topics those are shown that may be described; a missing one that is to be created
    on demand needs CREATE.

    What a caller sees of an answer is kept as long as the handler gives that very answer, because it is encoded once
    for each object.
    """

    def __init__(self, *, creates_topics: bool) -> None:
        self._creates_topics = creates_topics
        self._kept: OrderedDict[tuple[int, Principal, str], _Kept] = OrderedDict()

    async def __call__(
        self, request: MetadataRequest, context: RequestContext, access: Access, handler: Handler
    ) -> MetadataResponse:
        if request.topics is None or (context.version == 0 and not request.topics):
            response: MetadataResponse = await handler(request, context)
            return await self._seen(response, request, context, access)
        denied = [topic async for topic in context.work.over(request.topics) if not self._may(topic, request, access)]
        if denied:
            refused = frozenset(denied)
            allowed = tuple(topic for topic in request.topics if topic not in refused)
            response = await handler(replace(request, topics=allowed), context)
            # Version 0 takes no topics for all of them.
            answered = response.topics if allowed else ()
            response = replace(
                response, topics=(*answered, *(_denied_topic(topic, context) for topic in dict.fromkeys(denied)))
            )
        else:
            response = await handler(request, context)
        return _with_operations(response, request, access)

    def _may(self, topic: MetadataRequestTopic, request: MetadataRequest, access: Access) -> bool:
        if topic.topic_id != NO_TOPIC_ID or topic.name is None:
            known = access.topic_of(topic.topic_id)
            return known is None or access.may(Operation.DESCRIBE, _TOPIC, known)
        if not access.may(Operation.DESCRIBE, _TOPIC, topic.name):
            return False
        is_created = (
            self._creates_topics
            and request.allow_auto_topic_creation
            and topic.name not in access.image.topics
            and topic.name not in INTERNAL_TOPICS
            and timer_topics.timer_topic(topic.name) is None
        )
        return not is_created or access.may_create(topic.name)

    async def _seen(
        self, response: MetadataResponse, request: MetadataRequest, context: RequestContext, access: Access
    ) -> MetadataResponse:
        caller = access.caller
        key = (id(response), caller.principal, caller.host)
        if (kept := self._kept.get(key)) is not None and kept.response is response:
            return kept.seen
        topics = [
            topic
            async for topic in context.work.over(response.topics)
            if access.sees(Operation.DESCRIBE, _TOPIC, topic.name or "")
        ]
        seen = response if len(topics) == len(response.topics) else replace(response, topics=tuple(topics))
        seen = _with_operations(seen, request, access)
        if seen is not response:
            self._kept[key] = _Kept(response, seen)
            if len(self._kept) > _KEPT_ANSWERS:
                self._kept.popitem(last=False)
        return seen


def _denied_topic(topic: MetadataRequestTopic, context: RequestContext) -> MetadataResponseTopic:
    """By its name it is denied whether it exists or not; by its id it does not exist."""
    if topic.topic_id != NO_TOPIC_ID:
        name = None if context.version >= _TOPIC_IDS_SINCE else ""
        return MetadataResponseTopic(error_code=Code.UNKNOWN_TOPIC_ID, name=name, topic_id=topic.topic_id)
    return MetadataResponseTopic(error_code=Code.TOPIC_AUTHORIZATION_FAILED, name=topic.name)


def _with_operations(response: MetadataResponse, request: MetadataRequest, access: Access) -> MetadataResponse:
    """The operations that are really allowed, where the request asks for them."""
    if request.include_topic_authorized_operations:
        topics = tuple(
            topic
            if topic.error_code or topic.name is None
            else replace(topic, topic_authorized_operations=access.operations(_TOPIC, topic.name))
            for topic in response.topics
        )
        response = replace(response, topics=topics)
    if request.include_cluster_authorized_operations:
        response = replace(response, cluster_authorized_operations=_cluster_operations(access))
    return response


def _cluster_operations(access: Access) -> int:
    if not access.sees(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return access.operations(ResourceType.CLUSTER)


async def describe_cluster(
    request: DescribeClusterRequest, context: RequestContext, access: Access, handler: Handler
) -> DescribeClusterResponse:
    """Every caller may; the answer lists the operations that this caller may do."""
    response: DescribeClusterResponse = await handler(request, context)
    if request.include_cluster_authorized_operations and not response.error_code:
        return replace(response, cluster_authorized_operations=_cluster_operations(access))
    return response


async def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, context: RequestContext, access: Access, handler: Handler
) -> DescribeTopicPartitionsResponse:
    """DESCRIBE on each topic that is named; of all topics those are shown that may be described."""
    denied: list[DescribeTopicPartitionsResponseTopic] = []
    asked: Iterable[str] = (topic.name for topic in request.topics)
    if request.topics:
        names = []
        first = "" if request.cursor is None else request.cursor.topic_name
        async for name in context.work.over(asked):
            if access.may(Operation.DESCRIBE, _TOPIC, name):
                names.append(name)
            elif name >= first:
                denied.append(
                    DescribeTopicPartitionsResponseTopic(
                        error_code=Code.TOPIC_AUTHORIZATION_FAILED, name=name, partitions=()
                    )
                )
    else:
        names = [
            name
            async for name in context.work.over(access.image.topics)
            if access.sees(Operation.DESCRIBE, _TOPIC, name)
        ]
    cursor = request.cursor
    if cursor is not None and cursor.partition_index >= 0 and cursor.topic_name not in names:
        # What it points at is not shown: the page begins with what follows it.
        following = min((name for name in names if name > cursor.topic_name), default=None)
        if following is None:
            return DescribeTopicPartitionsResponse(topics=tuple(denied))
        cursor = Cursor(topic_name=following, partition_index=0)
    if not names:
        return DescribeTopicPartitionsResponse(topics=tuple(denied))
    topics = tuple(TopicRequest(name=name) for name in names)
    response: DescribeTopicPartitionsResponse = await handler(replace(request, topics=topics, cursor=cursor), context)
    seen = [
        topic
        if topic.error_code or topic.name is None
        else replace(topic, topic_authorized_operations=access.operations(_TOPIC, topic.name))
        for topic in response.topics
    ]
    return replace(response, topics=(*seen, *denied))
