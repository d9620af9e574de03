"""Metadata and DescribeCluster: what the cluster looks like, through the listener that the client uses.

Apart from the creation of topics on demand, a response is a function of the image. Responses are kept while the image
stays the same: most clients ask for the same few topics again and again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.broker.handlers.change_results import deadline_of, results_or_failure
from penstock.broker.requests.client_limits import ClientLimits
from penstock.broker.requests.context import RequestContext
from penstock.cluster import timer_topics
from penstock.cluster.decisions.retired_partitions import seen_of_gone
from penstock.cluster.decisions.topics import TopicCreation, check_name
from penstock.cluster.metadata import (
    INTERNAL_TOPICS,
    NO_LEADER,
    BrokerInfo,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config.address import Address
from penstock.config.broker import BrokerSettings, Limits
from penstock.errors import ApiError, Code
from penstock.ids import NO_TOPIC_ID, BrokerId
from penstock.net.caller import Caller
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
from penstock.replication.replicas import Replicas

MetadataHandler = Callable[[MetadataRequest, RequestContext], Awaitable[MetadataResponse]]

# Everything is allowed as long as there is no access control: one bit for each operation that Kafka knows for a
# topic (read, write, create, delete, alter, describe, describe and alter settings) and for a cluster.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))

# The first version in which a request may name topics by id.
TOPIC_IDS_SINCE = 12
CACHED_ANSWERS_MAX = 256

# The first version that says of a leader that it has no listener like the client's.
LISTENER_ERRORS_SINCE = 6

# The listener that the client came through, whether it requests all topics, whether ids and listener errors are
# allowed, whether the client is a producer, what it cannot write to, and the request: all that an answer depends on.
_Key = tuple[str, bool, bool, bool, bool, frozenset[str], MetadataRequest]


class ClusterHandlers:
    """Answers requests about brokers and topics."""

    def __init__(
        self,
        metadata: MetadataChanges,
        settings: BrokerSettings,
        limits: Limits,
        without_writes: Callable[[], frozenset[str]] = frozenset,
        quotas: ClientLimits | None = None,
    ) -> None:
        """`without_writes` names the database groups that take no writes now."""
        self._metadata = metadata
        self._without_writes = without_writes
        self._quotas = quotas
        self._default_partitions = settings.default_partitions
        self._creates_topics = settings.auto_create_topics
        self._topics_max = limits.topics_per_request
        # Answers made from the image of this version; dropped with it.
        self._cached_version = 0
        self._cached: dict[_Key, MetadataResponse] = {}

    async def metadata(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        everything = request.topics is None or (context.version == 0 and not request.topics)
        image = self._metadata.image
        version, caller = context.version, context.caller
        if request.topics is not None and len(request.topics) > self._topics_max:
            refusal = self._too_many(len(request.topics))
            refused = [_error_topic(topic, refusal, context) async for topic in context.work.over(request.topics)]
            return _metadata(image, refused, request, caller.listener)
        # Clients choose a partition for a record without a key among those that have a leader.
        unwritable = self._without_writes() if caller.has_produced else frozenset()
        key = (
            caller.listener,
            everything,
            version >= TOPIC_IDS_SINCE,
            version >= LISTENER_ERRORS_SINCE,
            caller.has_produced,
            unwritable,
            request,
        )
        if self._cached_version == image.version and (answer := self._cached.get(key)):
            return answer
        if everything:
            asked: Sequence[MetadataRequestTopic] = ()
            reach = _Reach.of(image, context, unwritable)
            topics = []
            async for name in context.work.over(image.topics):
                if (seen := image.seen(name)) is not None:
                    await context.work.grow(1 + len(seen.partitions))
                    topics.append(_topic(seen, reach, request))
        else:
            asked = tuple(dict.fromkeys(request.topics or ()))
            if error := self._refusal(asked, context):
                topics = [_error_topic(topic, error, context) for topic in asked]
                return _metadata(image, topics, request, caller.listener)
            errors = await self._create_missing(asked, request, caller)
            image = self._metadata.image
            reach = _Reach.of(image, context, unwritable)
            topics = []
            async for topic in context.work.over(asked):
                topics.append(_topic_or_error(image, topic, reach, request, errors))
                await context.work.grow(1 + len(topics[-1].partitions))
        if caller.has_produced:
            topics = [_with_gone(image, topic, reach) for topic in topics]
        answer = _metadata(image, topics, request, caller.listener)
        if not any(topic.error_code for topic in topics):
            self._keep(image, key, answer)
        return answer

    async def describe_cluster(
        self, request: DescribeClusterRequest, context: RequestContext
    ) -> DescribeClusterResponse:
        image = self._metadata.image
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
            controller_id=_controller_of(image, context.caller.listener),
            brokers=tuple(
                DescribeClusterBroker(broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
                for broker, endpoint in _reached(image, context.caller.listener)
            ),
            cluster_authorized_operations=CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
        )

    def _refusal(self, asked: Sequence[MetadataRequestTopic], context: RequestContext) -> ApiError | None:
        if context.version < TOPIC_IDS_SINCE and any(
            topic.name is None or topic.topic_id != NO_TOPIC_ID for topic in asked
        ):
            return ApiError(Code.INVALID_REQUEST, f"Topic ids are not supported in version {context.version}.")
        return None

    def _too_many(self, count: int) -> ApiError:
        return ApiError(
            Code.INVALID_REQUEST,
            f"{count} topics are named; limits.topics_per_request allows {self._topics_max}.",
        )

    async def _create_missing(
        self, asked: Sequence[MetadataRequestTopic], request: MetadataRequest, caller: Caller
    ) -> dict[str, ApiError]:
        """Creates what may be created; the errors of what could not be."""
        known = self._metadata.image.topics
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
        if missing and self._quotas is not None:
            allowance = self._quotas.partition_allowance(caller, is_strict=True)
            # The others stay unknown: clients ask again.
            missing = [name for name in missing if allowance.take(self._default_partitions)]
        if not missing:
            return {}
        results = await results_or_failure(
            self._metadata.create_topics([TopicCreation(name) for name in missing]), missing
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


class _Reach(NamedTuple):
    """What brokers are alive, and which of them a client cannot reach through listeners like the one it came by."""

    alive: Collection[BrokerId]
    without_listener: Collection[BrokerId]
    says_so: bool
    """Whether the version has an error of its own for a leader without such a listener."""
    unwritable: Collection[str]
    """Database groups whose partitions the client, a producer, should leave alone now."""

    @classmethod
    def of(cls, image: MetadataImage, context: RequestContext, unwritable: Collection[str]) -> _Reach:
        alive = image.alive
        reached = {broker.id for broker, _ in _reached(image, context.caller.listener)}
        return cls(alive, alive - reached, context.version >= LISTENER_ERRORS_SINCE, unwritable)

    def of_topic(self, topic: TopicImage) -> _Reach:
        """A topic that is not in shared storage is in no database."""
        return self if topic.is_shared or not self.unwritable else self._replace(unwritable=())


def _reached(image: MetadataImage, listener: str) -> Iterator[tuple[BrokerInfo, Address]]:
    """The brokers that are alive and have this listener, and where it is."""
    for broker in image.brokers.values():
        if broker.is_alive and (endpoint := broker.endpoint(listener)) is not None:
            yield broker, endpoint


def _metadata(
    image: MetadataImage, topics: Sequence[MetadataResponseTopic], request: MetadataRequest, listener: str
) -> MetadataResponse:
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for broker, endpoint in _reached(image, listener)
        ),
        cluster_id=image.cluster_id,
        controller_id=_controller_of(image, listener),
        topics=tuple(topics),
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
    )


def _controller_of(image: MetadataImage, listener: str) -> int:
    """The controller, if clients of this listener can reach it."""
    controller = image.brokers.get(image.controller)
    can_reach = controller is not None and controller.is_alive and controller.endpoint(listener) is not None
    return image.controller if can_reach else NO_LEADER


def _topic(topic: TopicImage, reach: _Reach, request: MetadataRequest) -> MetadataResponseTopic:
    reach = reach.of_topic(topic)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=tuple(_partition(partition, reach) for partition in topic.partitions),
        topic_authorized_operations=TOPIC_OPERATIONS
        if request.include_topic_authorized_operations
        else OPERATIONS_NOT_ASKED,
    )


def _partition(partition: PartitionImage, reach: _Reach) -> MetadataResponsePartition:
    leader, code = partition.leader, Code.NONE
    if leader == NO_LEADER or partition.database in reach.unwritable:
        leader, code = NO_LEADER, Code.LEADER_NOT_AVAILABLE
    elif leader in reach.without_listener:
        leader, code = NO_LEADER, Code.LISTENER_NOT_FOUND if reach.says_so else Code.LEADER_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=code,
        partition_index=partition.index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.in_sync,
        offline_replicas=tuple(broker for broker in partition.replicas if broker not in reach.alive),
    )


def _with_gone(image: MetadataImage, told: MetadataResponseTopic, reach: _Reach) -> MetadataResponseTopic:
    """The topic as a producer at work sees it: it has batches waiting for partitions that are gone by now, and would
    not send them anywhere if it could not see who leads them.
    """
    topic = image.topics.get(told.name or "")
    if topic is None or not (gone := seen_of_gone(topic)):
        return told
    reach = reach.of_topic(topic)
    return replace(told, partitions=(*told.partitions, *(_partition(each, reach) for each in gone)))


def _topic_or_error(
    image: MetadataImage,
    asked: MetadataRequestTopic,
    reach: _Reach,
    request: MetadataRequest,
    errors: dict[str, ApiError],
) -> MetadataResponseTopic:
    if asked.topic_id != NO_TOPIC_ID:
        names = image.topic_names_by_id
        name = names.get(asked.topic_id) or timer_topics.name_of(asked.topic_id, names.get) or ""
        topic = image.seen(name) or timer_topics.seen(image, name)
        if topic is None:
            return MetadataResponseTopic(error_code=Code.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        return _topic(topic, reach, request)
    name = asked.name or ""
    topic = image.seen(name) or timer_topics.seen(image, name)
    if topic is not None:
        return _topic(topic, reach, request)
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


def announced(
    handler: MetadataHandler, metadata: MetadataChanges, replicas: Replicas, topic_wait_ms: int
) -> MetadataHandler:
    """The Metadata handler, with partitions held back until this broker can serve them.

    A request that names a topic waits until that topic has been applied here, and for no other. After `topic_wait_ms`
    the response says LEADER_NOT_AVAILABLE of a topic that is still being created, for which clients ask again, and has
    the partitions that a topic had before of one that is still growing. A request for all topics does not wait: its
    response leaves out what is still being created.
    """

    def usable(topic: MetadataResponseTopic) -> MetadataResponseTopic | None:
        """The topic with the partitions that are served here; None if it is still being created."""
        image = metadata.image.topics.get(topic.name or "")
        if image is None or replicas.has_applied(image):
            return topic
        count = replicas.applied_partitions(image)
        if not count:
            return None
        return replace(topic, partitions=tuple(each for each in topic.partitions if each.partition_index < count))

    async def handle(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        response = await handler(request, context)
        if replicas.is_settled:
            return response
        if request.topics:
            pending = [topic.name for topic in response.topics if topic.name is not None and usable(topic) is not topic]
            if not pending or not await replicas.late(pending, deadline_of(topic_wait_ms)):
                return response
            shown = (usable(topic) or _coming(topic) for topic in response.topics)
        else:
            shown = (found for topic in response.topics if (found := usable(topic)) is not None)
        return replace(response, topics=tuple(shown))

    return handle


def _coming(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    """A topic that is still being created."""
    return replace(topic, error_code=Code.LEADER_NOT_AVAILABLE, partitions=())
