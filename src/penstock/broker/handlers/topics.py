"""CreateTopics, DeleteTopics and CreatePartitions.

Each item of a request has its own result, in the order of the request. An item that is named twice is refused in both
places, because the broker cannot tell which of the two was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.broker.config_descriptions import ConfigDescriptions
from penstock.broker.handlers.change_results import duplicates, results_or_failure
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

# From this version on there is a code for it.
DELETION_DISABLED_SINCE = 3

_TWICE = ApiError(Code.INVALID_REQUEST, "Duplicate topic name.")


class TopicHandlers:
    """Answers requests that make, grow and remove topics."""

    def __init__(
        self, metadata: MetadataChanges, settings: BrokerSettings, limits: Limits, descriptions: ConfigDescriptions
    ) -> None:
        self._metadata = metadata
        self._deletion_allowed = settings.delete_topics
        self._topics_max = limits.topics_per_request
        self._descriptions = descriptions

    async def create_topics(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
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
        wanted = [_new_topic(topic) for topic in request.topics if topic.name not in refused]
        results = await results_or_failure(
            self._metadata.create_topics(wanted, validate_only=request.validate_only),
            [topic.name for topic in wanted],
        )
        # A name given twice is answered once, as in Kafka.
        return CreateTopicsResponse(
            topics=tuple(
                _not_created(name, refused[name]) if name in refused else self._creation(name, results[name])
                for name in dict.fromkeys(names)
            )
        )

    async def delete_topics(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
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
        return DeleteTopicsResponse(responses=tuple(await self._deletions(asked)))

    async def create_partitions(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
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
        wanted = [_more_partitions(topic) for topic in request.topics if topic.name not in refused]
        results = await results_or_failure(
            self._metadata.create_partitions(wanted, validate_only=request.validate_only),
            [topic.topic for topic in wanted],
        )
        return CreatePartitionsResponse(
            results=tuple(
                _growth(name, refused[name] if name in refused else results[name]) for name in dict.fromkeys(names)
            )
        )

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

    async def _deletions(self, asked: Sequence[DeleteTopicState]) -> list[DeletableTopicResult]:
        """Every topic is resolved to its id first, so that a namesake created meanwhile is not deleted."""
        image = self._metadata.image
        twice = duplicates(asked)
        found = {
            topic: image.topics.get(topic.name) if topic.name is not None else image.topic_by_id(topic.topic_id)
            for topic in asked
        }
        meant_twice = duplicates(topic.id for topic in found.values() if topic is not None)
        ids: dict[str, TopicId] = {}
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
            else:
                ids[image_of_it.name] = image_of_it.id
                answers.append(image_of_it)
                continue
            answers.append(_deletion(name, topic_id, error))
        results = await results_or_failure(self._metadata.delete_topics(list(ids), ids=ids), ids)
        return [
            _deletion(answer.name, answer.id, results[answer.name]) if isinstance(answer, TopicImage) else answer
            for answer in answers
        ]


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
