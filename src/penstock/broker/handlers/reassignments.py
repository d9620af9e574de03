"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments.

The broker answers a change when it has carried it out for the topics in question, or when the request's `timeout_ms` is
over. Partitions of topics that are not ready by then get REQUEST_TIMED_OUT, and the broker goes on with them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from penstock.broker.handlers.change_results import TIMED_OUT, deadline_of, not_written, results_or_failure
from penstock.broker.requests.context import RequestContext
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config.broker import Limits
from penstock.errors import ApiError, Code, CoordinationError
from penstock.ids import BrokerId, TopicPartition
from penstock.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from penstock.protocol.messages.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from penstock.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from penstock.replication.replicas import Replicas

Results = Mapping[TopicPartition, ApiError | None]


class ReassignmentHandlers:
    """Answers requests about leaders and replicas of single partitions."""

    def __init__(self, metadata: MetadataChanges, limits: Limits, replicas: Replicas) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._topics_max = limits.topics_per_request

    async def elect_leaders(self, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
        deadline = deadline_of(request.timeout_ms)
        if request.election_type not in (PREFERRED, UNCLEAN):
            return ElectLeadersResponse(error_code=Code.INVALID_REQUEST)
        wanted = None
        if request.topic_partitions is not None:
            if self._too_many(request.topic_partitions):
                return ElectLeadersResponse(error_code=Code.INVALID_REQUEST)
            wanted = _addresses((topic.topic, topic.partitions) for topic in request.topic_partitions)
        try:
            results = await self._metadata.elect_leaders(wanted, is_unclean=request.election_type == UNCLEAN)
        except CoordinationError as error:
            failure = not_written(error)
            if wanted is None:
                # It is not known which partitions would have been in the response.
                return ElectLeadersResponse(error_code=failure.code)
            results = dict.fromkeys(wanted, failure)
        results = await self._carried_out(results, deadline)
        return ElectLeadersResponse(
            replica_election_results=tuple(
                ReplicaElectionResult(
                    topic=topic,
                    partition_result=tuple(
                        PartitionResult(partition_id=index, error_code=code, error_message=message)
                        for index, code, message in partitions
                    ),
                )
                for topic, partitions in _by_topic(results)
            )
        )

    async def alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        deadline = deadline_of(request.timeout_ms)
        allowed = request.allow_replication_factor_change
        # Partitions, not topics: all of them are decided in one piece.
        count = sum(max(1, len(topic.partitions)) for topic in request.topics)
        if count > self._topics_max:
            return AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=allowed,
                error_code=Code.INVALID_REQUEST,
                error_message=f"{count} partitions are named; limits.topics_per_request allows {self._topics_max}.",
            )
        targets = {
            TopicPartition(topic.name, partition.partition_index): None
            if partition.replicas is None
            else tuple(map(BrokerId, partition.replicas))
            for topic in request.topics
            for partition in topic.partitions
        }
        results = await results_or_failure(
            self._metadata.reassign_partitions(targets, may_change_factor=allowed), targets
        )
        results = await self._carried_out(results, deadline)
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allowed,
            responses=tuple(
                ReassignableTopicResponse(
                    name=topic,
                    partitions=tuple(
                        ReassignablePartitionResponse(partition_index=index, error_code=code, error_message=message)
                        for index, code, message in partitions
                    ),
                )
                for topic, partitions in _by_topic(results)
            ),
        )

    async def list_reassignments(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        image = self._metadata.image
        if request.topics is None:
            asked: Mapping[str, Container[int] | None] = dict.fromkeys(image.topics)
        else:
            asked = {
                topic.name: frozenset(topic.partition_indexes) async for topic in context.work.over(request.topics)
            }
        found: list[OngoingTopicReassignment] = []
        async for name, indexes in context.work.over(asked.items()):
            topic = image.topics.get(name)
            moving = [
                OngoingPartitionReassignment(
                    partition_index=partition.index,
                    replicas=partition.replicas,
                    adding_replicas=partition.adding,
                    removing_replicas=partition.removing,
                )
                for partition in (topic.partitions if topic is not None else ())
                if partition.is_moving and (indexes is None or partition.index in indexes)
            ]
            if moving:
                found.append(OngoingTopicReassignment(name=name, partitions=tuple(moving)))
        return ListPartitionReassignmentsResponse(topics=tuple(found))

    async def _carried_out(self, results: Results, deadline: float) -> Results:
        """The results once this broker has carried out the changes; at the deadline REQUEST_TIMED_OUT for the rest."""
        changed = {at.topic for at, error in results.items() if error is None}
        if not changed or self._replicas.is_settled:
            return results
        late = await self._replicas.late(changed, deadline)
        return {at: TIMED_OUT if error is None and at.topic in late else error for at, error in results.items()}

    def _too_many(self, topics: tuple[object, ...]) -> bool:
        return len(topics) > self._topics_max


def _addresses(topics: Iterable[tuple[str, Iterable[int]]]) -> list[TopicPartition]:
    return list(dict.fromkeys(TopicPartition(topic, index) for topic, indexes in topics for index in indexes))


def _by_topic(results: Results) -> list[tuple[str, list[tuple[int, int, str | None]]]]:
    """Partition, error code and message of each result, under the topic."""
    topics: dict[str, list[tuple[int, int, str | None]]] = {}
    for at, error in results.items():
        answer = (at.partition, 0, None) if error is None else (at.partition, int(error.code), str(error))
        topics.setdefault(at.topic, []).append(answer)
    return list(topics.items())
