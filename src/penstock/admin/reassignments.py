"""Moving replicas of partitions to other brokers (Kafka's partition reassignment), and electing leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.admin.cluster_nodes import cluster_nodes
from penstock.admin.connection import AdminConnection, Deadline
from penstock.admin.errors import AdminError
from penstock.admin.results import Results
from penstock.admin.wire import call
from penstock.config.address import Address
from penstock.errors import Code, code_from
from penstock.ids import TopicPartition
from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.elect_leaders import (
    PREFERRED,
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from penstock.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

T = TypeVar("T")

_ALTER_VERSION = 0
_ELECT_VERSION = 2
_LIST_VERSION = 0


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition that is being moved."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    """All of them while it moves: old and new."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ReassignmentOperations:
    """Operations on the places of replicas. The client library lacks these requests (it has ElectLeaders, but version
    2.16 cannot send it), so they go to the controller over a connection without TLS or SASL (`wire`).
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def list(self) -> tuple[Reassignment, ...]:
        """All partitions that are being moved, in order."""
        deadline = self._connection.deadline()
        told = self._ask(
            apis.LIST_PARTITION_REASSIGNMENTS,
            _LIST_VERSION,
            ListPartitionReassignmentsRequest(timeout_ms=_ms(deadline)),
            ListPartitionReassignmentsResponse,
            deadline,
        )
        _check(told.error_code, told.error_message)
        found = [
            Reassignment(
                TopicPartition(topic.name, partition.partition_index),
                partition.replicas,
                partition.adding_replicas,
                partition.removing_replicas,
            )
            for topic in told.topics
            for partition in topic.partitions
        ]
        return tuple(sorted(found, key=lambda each: each.partition))

    def move(self, replicas: Mapping[TopicPartition, Sequence[int]]) -> Results[TopicPartition, None]:
        """Starts to move partitions to these brokers, the preferred leader first. `list` shows what is under way."""
        return self._alter(replicas)

    def cancel(self, partitions: Iterable[TopicPartition]) -> Results[TopicPartition, None]:
        """Stops moves that are under way: the partitions stay where they were before."""
        return self._alter(dict.fromkeys(partitions, None))

    def elect_preferred_leaders(self, partitions: Iterable[TopicPartition]) -> Results[TopicPartition, None]:
        """Makes the first replica of each partition its leader; ELECTION_NOT_NEEDED for one that it leads already."""
        deadline, wanted = self._connection.deadline(), _by_topic(partitions)
        if not wanted:
            return Results()
        told = self._ask(
            apis.ELECT_LEADERS,
            _ELECT_VERSION,
            ElectLeadersRequest(
                election_type=PREFERRED,
                topic_partitions=tuple(
                    TopicPartitions(topic=name, partitions=tuple(indexes)) for name, indexes in wanted.items()
                ),
                timeout_ms=_ms(deadline),
            ),
            ElectLeadersResponse,
            deadline,
        )
        _check(told.error_code, None)
        return _results(
            (TopicPartition(topic.topic, partition.partition_id), partition.error_code, partition.error_message)
            for topic in told.replica_election_results
            for partition in topic.partition_result
        )

    def _alter(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> Results[TopicPartition, None]:
        deadline = self._connection.deadline()
        if not targets:
            return Results()
        topics: dict[str, list[ReassignablePartition]] = {}
        for at, brokers in targets.items():
            replicas = None if brokers is None else tuple(brokers)
            topics.setdefault(at.topic, []).append(
                ReassignablePartition(partition_index=at.partition, replicas=replicas)
            )
        told = self._ask(
            apis.ALTER_PARTITION_REASSIGNMENTS,
            _ALTER_VERSION,
            AlterPartitionReassignmentsRequest(
                timeout_ms=_ms(deadline),
                topics=tuple(
                    ReassignableTopic(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()
                ),
            ),
            AlterPartitionReassignmentsResponse,
            deadline,
        )
        _check(told.error_code, told.error_message)
        return _results(
            (TopicPartition(topic.name, partition.partition_index), partition.error_code, partition.error_message)
            for topic in told.responses
            for partition in topic.partitions
        )

    def _ask(self, api: Api, version: int, request: object, response: type[T], deadline: Deadline) -> T:
        controller = self._controller(deadline)
        return call(controller, api, version, request, response, self._connection.settings, deadline)

    def _controller(self, deadline: Deadline) -> Address:
        nodes = cluster_nodes(self._connection, deadline)
        controller = nodes.addresses.get(nodes.controller)
        if controller is None:
            raise AdminError(Code.NOT_CONTROLLER.name, "the cluster has no controller at the moment")
        return controller


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at in partitions:
        found.setdefault(at.topic, []).append(at.partition)
    return found


def _results(answers: Iterable[tuple[TopicPartition, int, str | None]]) -> Results[TopicPartition, None]:
    told = {at: None if code == Code.NONE else _error(code, message) for at, code, message in answers}
    return Results(
        {at: None for at, error in told.items() if error is None},
        {at: error for at, error in told.items() if error is not None},
    )


def _check(code: int, message: str | None) -> None:
    if code != Code.NONE:
        raise _error(code, message)


def _error(code: int, message: str | None) -> AdminError:
    name = code_from(code).name
    return AdminError(name, message or name)


def _ms(deadline: Deadline) -> int:
    return int(deadline.left_s * 1000)
