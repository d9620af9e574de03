"""CreateTopics, DeleteTopics and CreatePartitions.

Each item of a request has its own result, in the order of the request. An item that is named twice is refused in both
places, because the broker cannot tell which of the two was meant.

The broker answers when it has carried out a change, or when the request's `timeout_ms` is over. The topics that are not
ready by then get REQUEST_TIMED_OUT, and the broker goes on with them. The commit of the change has its own limits, in
`cluster/`: no answer goes out before the broker knows its outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from penstock.broker.config_descriptions import ConfigDescriptions
from penstock.broker.handlers.change_results import TIMED_OUT, deadline_of, duplicates, results_or_failure
from penstock.broker.requests.client_limits import ClientLimits, PartitionAllowance
from penstock.broker.requests.context import RequestContext
from penstock.cluster.decisions.topics import MorePartitions, ReplicaAssignment, TopicCreation
from penstock.cluster.metadata import INTERNAL_TOPICS, TopicImage
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config.broker import BrokerSettings, Limits
from penstock.errors import ApiError, Code
from penstock.ids import NO_TOPIC_ID, BrokerId, TopicId
from penstock.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from penstock.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.replication.replicas import Replicas

R = TypeVar("R")

# From this version on there is a code for it.
DELETION_DISABLED_SINCE = 3
# From these versions on a client knows the code of a quota that is used up; older ones are throttled, not refused.
_CREATE_TOPICS_STRICT_SINCE = 6
_DELETE_TOPICS_STRICT_SINCE = 5
_CREATE_PARTITIONS_STRICT_SINCE = 3

_TOO_FAST = ApiError(
    Code.THROTTLING_QUOTA_EXCEEDED,
    "The quota of partition changes is used up: try again after the throttle time.",
)
_TWICE = ApiError(Code.INVALID_REQUEST, "Duplicate topic name.")


class TopicHandlers:
    """Answers requests that make, grow and remove topics."""

    def __init__(
        self,
        metadata: MetadataChanges,
        settings: BrokerSettings,
        limits: Limits,
        descriptions: ConfigDescriptions,
        quotas: ClientLimits,
        replicas: Replicas,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._quotas = quotas
        self._deletion_allowed = settings.delete_topics
        self._default_partitions = settings.default_partitions
        self._topics_max = limits.topics_per_request
        self._descriptions = descriptions

    async def create_topics(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        deadline = _deadline(request.timeout_ms)
        names = [topic.name for topic in request.topics]
        if error := self._too_many(names):
            return CreateTopicsResponse(
                topics=tuple([_not_created(name, error) async for name in context.work.over(names)])
            )
        twice = duplicates(names)
        refused = dict.fromkeys(twice, _TWICE) | {
            name: ApiError(Code.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
            for name in INTERNAL_TOPICS.intersection(names)
        }
        allowance = self._allowance(context, _CREATE_TOPICS_STRICT_SINCE)
        taken: dict[str, int] = {}
        for topic in request.topics:
            if topic.name not in refused and topic.name not in self._metadata.image.topics:
                count = len(topic.assignments) or topic.num_partitions
                taken[topic.name] = count if count > 0 else self._default_partitions
                if not allowance.take(taken[topic.name]):
                    refused[topic.name] = _TOO_FAST
                    del taken[topic.name]
        wanted = [_new_topic(topic) for topic in request.topics if topic.name not in refused]
        results = await results_or_failure(
            self._metadata.create_topics(wanted, validate_only=request.validate_only),
            [topic.name for topic in wanted],
        )
        _give_back(allowance, taken, results)
        if not request.validate_only:
            results = await self._carried_out(results, deadline)
        # A name given twice is answered once, as in Kafka.
        return CreateTopicsResponse(
            topics=tuple(
                _not_created(name, refused[name]) if name in refused else self._creation(name, results[name])
                for name in dict.fromkeys(names)
            )
        )

    async def delete_topics(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        deadline = _deadline(request.timeout_ms)
        asked = [*(DeleteTopicState(name=name) for name in request.topic_names), *request.topics]
        if not self._deletion_allowed:
            code = Code.TOPIC_DELETION_DISABLED
            if context.version < DELETION_DISABLED_SINCE:
                code = Code.INVALID_REQUEST
            error: ApiError | None = ApiError(code, "Topic deletion is disabled.")
        else:
            error = self._too_many(asked)
        if error:
            return DeleteTopicsResponse(
                responses=tuple(
                    [_deletion(topic.name, topic.topic_id, error) async for topic in context.work.over(asked)]
                )
            )
        allowance = self._allowance(context, _DELETE_TOPICS_STRICT_SINCE)
        return DeleteTopicsResponse(responses=tuple(await self._deletions(asked, allowance, deadline)))

    async def create_partitions(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        deadline = _deadline(request.timeout_ms)
        names = [topic.name for topic in request.topics]
        if error := self._too_many(names):
            return CreatePartitionsResponse(
                results=tuple([_growth(name, error) async for name in context.work.over(names)])
            )
        twice = duplicates(names)
        # The number of its partitions says which of them a group or a transactional id belongs to.
        refused = dict.fromkeys(twice, _TWICE) | {
            name: ApiError(Code.INVALID_REQUEST, f"Internal topic {name} cannot get more partitions.")
            for name in INTERNAL_TOPICS.intersection(names)
        }
        allowance = self._allowance(context, _CREATE_PARTITIONS_STRICT_SINCE)
        taken: dict[str, int] = {}
        for topic in request.topics:
            known = self._metadata.image.topics.get(topic.name)
            if topic.name not in refused and known is not None and topic.count > len(known.partitions):
                taken[topic.name] = topic.count - len(known.partitions)
                if not allowance.take(taken[topic.name]):
                    refused[topic.name] = _TOO_FAST
                    del taken[topic.name]
        wanted = [_more_partitions(topic) for topic in request.topics if topic.name not in refused]
        results = await results_or_failure(
            self._metadata.create_partitions(wanted, validate_only=request.validate_only),
            [topic.topic for topic in wanted],
        )
        _give_back(allowance, taken, results)
        if not request.validate_only:
            results = await self._carried_out(results, deadline)
        return CreatePartitionsResponse(
            results=tuple(
                _growth(name, refused[name] if name in refused else results[name]) for name in dict.fromkeys(names)
            )
        )

    async def _carried_out(
        self, results: Mapping[str, R | ApiError], deadline: float | None
    ) -> Mapping[str, R | ApiError]:
        """The results once this broker has carried out the changes; at the deadline REQUEST_TIMED_OUT for the rest.
        Without a deadline nothing waits, and every change gets that error, as in Kafka with ZooKeeper.
        """
        if deadline is None:
            late = set(results)
        elif self._replicas.is_settled:
            return results
        else:
            late = await self._replicas.late(results, deadline)
        return {
            name: TIMED_OUT if name in late and not isinstance(result, ApiError) else result
            for name, result in results.items()
        }

    def _allowance(self, context: RequestContext, strict_since: int) -> PartitionAllowance:
        """What the caller's quota of partition changes leaves (KIP-599)."""
        return self._quotas.partition_allowance(context.caller, is_strict=context.version >= strict_since)

    def _too_many(self, items: Sequence[object]) -> ApiError | None:
        if len(items) <= self._topics_max:
            return None
        return ApiError(
            Code.INVALID_REQUEST,
            f"{len(items)} topics are named; limits.topics_per_request allows {self._topics_max}.",
        )

    def _creation(self, name: str, result: TopicImage | ApiError) -> CreatableTopicResult:
        if isinstance(result, ApiError):
            return _not_created(name, result)
        image = self._metadata.image
        settings = self._descriptions.topic(image, result)
        base = image.topics.get(result.view_of or "", result)
        return CreatableTopicResult(
            name=name,
            topic_id=result.id,
            num_partitions=len(base.partitions),
            replication_factor=base.replication_factor,
            configs=tuple(
                CreatableTopicConfigs(
                    name=setting.name,
                    value=setting.value,
                    read_only=setting.read_only,
                    config_source=setting.source,
                )
                for setting in settings
            ),
        )

    async def _deletions(
        self, asked: Sequence[DeleteTopicState], allowance: PartitionAllowance, deadline: float | None
    ) -> list[DeletableTopicResult]:
        """Every topic is resolved to its id first, so that a namesake created meanwhile is not deleted."""
        image = self._metadata.image
        twice = duplicates(asked)
        found = {
            topic: image.topics.get(topic.name) if topic.name is not None else image.topic_by_id(topic.topic_id)
            for topic in asked
        }
        meant_twice = duplicates(topic.id for topic in found.values() if topic is not None)
        ids: dict[str, TopicId] = {}
        taken: dict[str, int] = {}
        answers: list[DeletableTopicResult | TopicImage] = []
        for topic, image_of_it in found.items():
            name, topic_id = topic.name, topic.topic_id
            if name is None and topic_id == NO_TOPIC_ID:
                error = ApiError(Code.INVALID_REQUEST, "Neither topic name nor id were specified.")
            elif name is not None and topic_id != NO_TOPIC_ID:
                error = ApiError(Code.INVALID_REQUEST, "You may not specify both topic name and topic id.")
            elif topic in twice:
                error = ApiError(Code.INVALID_REQUEST, f"Duplicate topic {'id' if name is None else 'name'}.")
            elif image_of_it is None and name is None:
                error = ApiError(Code.UNKNOWN_TOPIC_ID, f"No topic has the id {topic_id}.")
            elif image_of_it is None:
                error = ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            elif image_of_it.id in meant_twice:
                error = ApiError(Code.INVALID_REQUEST, "The topic was given both by name and by id.")
            elif not allowance.take(len(image_of_it.partitions)):
                error = _TOO_FAST
            else:
                taken[image_of_it.name] = len(image_of_it.partitions)
                ids[image_of_it.name] = image_of_it.id
                answers.append(image_of_it)
                continue
            answers.append(_deletion(name, topic_id, error))
        results = await results_or_failure(self._metadata.delete_topics(list(ids), ids=ids), ids)
        _give_back(allowance, taken, results)
        results = await self._carried_out(results, deadline)
        return [
            _deletion(answer.name, answer.id, results[answer.name]) if isinstance(answer, TopicImage) else answer
            for answer in answers
        ]


def _deadline(timeout_ms: int) -> float | None:
    """A time of the event loop; None for a client that does not wait."""
    return deadline_of(timeout_ms) if timeout_ms > 0 else None


def _give_back(allowance: PartitionAllowance, taken: Mapping[str, int], results: Mapping[str, object]) -> None:
    """What failed was neither created nor deleted."""
    failed = sum(count for name, count in taken.items() if isinstance(results[name], ApiError))
    if failed:
        allowance.give_back(failed)


def _new_topic(topic: CreatableTopic) -> TopicCreation:
    return TopicCreation(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            ReplicaAssignment(assignment.partition_index, _broker_ids(assignment.broker_ids))
            for assignment in topic.assignments
        ),
        overrides={config.name: config.value for config in topic.configs},
    )


def _more_partitions(topic: CreatePartitionsTopic) -> MorePartitions:
    assignments = topic.assignments
    return MorePartitions(
        topic=topic.name,
        count=topic.count,
        assignments=None if assignments is None else tuple(_broker_ids(each.broker_ids) for each in assignments),
    )


def _broker_ids(numbers: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def _not_created(name: str, error: ApiError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=str(error))


def _growth(name: str, error: ApiError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name)
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=str(error))


def _deletion(name: str | None, topic_id: TopicId, error: ApiError | None) -> DeletableTopicResult:
    if error is None:
        return DeletableTopicResult(name=name, topic_id=topic_id)
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.code, error_message=str(error))
