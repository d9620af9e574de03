"""Metadata, DescribeCluster and DescribeTopicPartitions: what the cluster looks like.

Everything but the creation of topics on demand is a function of the image, so answers are kept for as long as
the image is the same one: most clients ask for the same few topics again and again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.broker.context import RequestContext
from penstock.broker.handlers.committing import results_or_failure
from penstock.cluster import timer_topics
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import INTERNAL_TOPICS, NO_LEADER, MetadataImage, PartitionImage, TopicImage
from penstock.cluster.retiring import seen_of_gone
from penstock.cluster.topics import NewTopic, check_name
from penstock.config.broker import BrokerSettings, Limits
from penstock.errors import ApiError, Code
from penstock.ids import NO_TOPIC_ID, BrokerId
from penstock.protocol.messages.describe_cluster import (
    BROKERS,
    CONTROLLERS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from penstock.protocol.messages.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

# What anybody may do where nobody is kept from anything: one bit for each operation that Kafka knows for a
# topic (read, write, create, delete, alter, describe, describe and alter settings) and for a cluster.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))

# The first version in which a request may name topics by id.
TOPIC_IDS_SINCE = 12
CACHED_ANSWERS_MAX = 256

# Whether all topics are asked for, whether ids are allowed, whether a producer asks, and the request: all that an
# answer depends on.
_Key = tuple[bool, bool, bool, MetadataRequest]


class ClusterHandlers:
    """Answers requests about brokers and topics."""

    def __init__(self, controller: Controller, settings: BrokerSettings, limits: Limits) -> None:
        self._controller = controller
        self._creates_topics = settings.auto_create_topics
        self._topics_max = limits.topics_per_request
        # Answers made from the image of this version; dropped with it.
        self._cached_version = 0
        self._cached: dict[_Key, MetadataResponse] = {}

    async def metadata(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        everything = request.topics is None or (context.version == 0 and not request.topics)
        image = self._controller.image
        key = (everything, context.version >= TOPIC_IDS_SINCE, context.has_produced, request)
        if self._cached_version == image.version and (answer := self._cached.get(key)):
            return answer
        if everything:
            asked: Sequence[MetadataRequestTopic] = ()
            alive = image.alive
            topics = [_topic(topic, alive, request) for name in image.topics if (topic := image.seen(name))]
        else:
            asked = tuple(dict.fromkeys(request.topics or ()))
            if error := self._refusal(asked, context):
                topics = [_error_topic(topic, error, context) for topic in asked]
                return _metadata(image, topics, request)
            errors = await self._create_missing(asked, request)
            image = self._controller.image
            topics = [_topic_or_error(image, topic, request, errors) for topic in asked]
        if context.has_produced:
            topics = [_with_gone(image, topic) for topic in topics]
        answer = _metadata(image, topics, request)
        if not any(topic.error_code for topic in topics):
            self._keep(image, key, answer)
        return answer

    async def describe_cluster(
        self, request: DescribeClusterRequest, context: RequestContext
    ) -> DescribeClusterResponse:
        image = self._controller.image
        if request.endpoint_type != BROKERS:
            known = request.endpoint_type == CONTROLLERS
            return DescribeClusterResponse(
                error_code=Code.MISMATCHED_ENDPOINT_TYPE if known else Code.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="This is an endpoint of a broker, not of a controller."
                if known
                else f"Unsupported endpoint type {request.endpoint_type}",
                cluster_id="",
            )
        asked = request.include_cluster_authorized_operations
        return DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=_controller_of(image),
            brokers=tuple(
                DescribeClusterBroker(broker_id=broker.id, host=broker.host, port=broker.port, rack=broker.rack)
                for broker in image.brokers.values()
                if broker.is_alive
            ),
            cluster_authorized_operations=CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
        )

    def _refusal(self, asked: Sequence[MetadataRequestTopic], context: RequestContext) -> ApiError | None:
        if len(asked) > self._topics_max:
            return ApiError(
                Code.INVALID_REQUEST,
                f"{len(asked)} topics are named; limits.topics_per_request allows {self._topics_max}.",
            )
        if context.version < TOPIC_IDS_SINCE and any(
            topic.name is None or topic.topic_id != NO_TOPIC_ID for topic in asked
        ):
            return ApiError(Code.INVALID_REQUEST, f"Topic ids are not supported in version {context.version}.")
        return None

    async def _create_missing(
        self, asked: Sequence[MetadataRequestTopic], request: MetadataRequest
    ) -> dict[str, ApiError]:
        """Creates what may be created; the errors of what could not be."""
        known = self._controller.image.topics
        if not (self._creates_topics and request.allow_auto_topic_creation):
            return {}
        # Internal topics are made by what uses them, in the shape it needs.
        missing = [
            topic.name
            for topic in asked
            if topic.name is not None
            and topic.topic_id == NO_TOPIC_ID
            and topic.name not in known
            and topic.name not in INTERNAL_TOPICS
            and timer_topics.timer_topic(topic.name) is None
        ]
        if not missing:
            return {}
        results = await results_or_failure(
            self._controller.create_topics([NewTopic(name) for name in missing]), missing
        )
        # A change that could not be written leaves the topic unknown, which clients know to ask again for.
        return {
            name: result
            for name, result in results.items()
            if isinstance(result, ApiError) and result.code is not Code.UNKNOWN_SERVER_ERROR
        }

    def _keep(self, image: MetadataImage, key: _Key, answer: MetadataResponse) -> None:
        if self._cached_version != image.version or len(self._cached) >= CACHED_ANSWERS_MAX:
            self._cached.clear()
            self._cached_version = image.version
        self._cached[key] = answer


def _metadata(
    image: MetadataImage, topics: Sequence[MetadataResponseTopic], request: MetadataRequest
) -> MetadataResponse:
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=broker.id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in image.brokers.values()
            if broker.is_alive
        ),
        cluster_id=image.cluster_id,
        controller_id=_controller_of(image),
        topics=tuple(topics),
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
    )


def _controller_of(image: MetadataImage) -> int:
    """The controller, if clients can reach it."""
    controller = image.brokers.get(image.controller)
    return controller.id if controller is not None and controller.is_alive else NO_LEADER


def _topic(topic: TopicImage, alive: Collection[BrokerId], request: MetadataRequest) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=tuple(_partition(partition, alive) for partition in topic.partitions),
        topic_authorized_operations=TOPIC_OPERATIONS
        if request.include_topic_authorized_operations
        else OPERATIONS_NOT_ASKED,
    )


def _partition(partition: PartitionImage, alive: Collection[BrokerId]) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=Code.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else Code.NONE,
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.in_sync,
        offline_replicas=tuple(broker for broker in partition.replicas if broker not in alive),
    )


def _with_gone(image: MetadataImage, told: MetadataResponseTopic) -> MetadataResponseTopic:
    """The topic as a producer at work sees it: it has batches waiting for partitions that are gone by now, and would
    not send them anywhere if it could not see who leads them.
    """
    topic = image.topics.get(told.name or "")
    if topic is None or not (gone := seen_of_gone(topic)):
        return told
    return replace(told, partitions=(*told.partitions, *(_partition(each, image.alive) for each in gone)))


def _topic_or_error(
    image: MetadataImage,
    asked: MetadataRequestTopic,
    request: MetadataRequest,
    errors: dict[str, ApiError],
) -> MetadataResponseTopic:
    if asked.topic_id != NO_TOPIC_ID:
        names = image.topic_names_by_id
        name = names.get(asked.topic_id) or timer_topics.name_of(asked.topic_id, names.get) or ""
        topic = image.seen(name) or timer_topics.seen(image, name)
        if topic is None:
            return MetadataResponseTopic(error_code=Code.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        return _topic(topic, image.alive, request)
    name = asked.name or ""
    topic = image.seen(name) or timer_topics.seen(image, name)
    if topic is not None:
        return _topic(topic, image.alive, request)
    return MetadataResponseTopic(
        error_code=errors[name].code if name in errors else code_of_missing(name),
        name=name,
        is_internal=name in INTERNAL_TOPICS,
    )


def _error_topic(asked: MetadataRequestTopic, error: ApiError, context: RequestContext) -> MetadataResponseTopic:
    name = asked.name
    if name is None and context.version < TOPIC_IDS_SINCE:
        name = ""
    return MetadataResponseTopic(error_code=error.code, name=name, topic_id=asked.topic_id)


def code_of_missing(name: str) -> Code:
    """Whether a topic that does not exist could have existed under this name."""
    try:
        check_name(name)
    except ApiError as error:
        return error.code
    return Code.UNKNOWN_TOPIC_OR_PARTITION
