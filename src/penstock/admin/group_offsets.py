"""Deleting committed offsets of a group: it forgets partitions that it reads no longer."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.admin.connection import AdminConnection, Deadline
from penstock.admin.errors import AdminError
from penstock.admin.results import Results
from penstock.admin.wire import call
from penstock.config.address import Address
from penstock.errors import Code, code_from
from penstock.ids import TopicPartition
from penstock.protocol import apis
from penstock.protocol.messages.find_coordinator import GROUP, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

_FIND_VERSION = 4
_DELETE_VERSION = 0
_REASONS = {
    Code.GROUP_SUBSCRIBED_TO_TOPIC.name: "a member of the group reads the topic; stop it first",
    Code.GROUP_ID_NOT_FOUND.name: "there is no such group",
    Code.NON_EMPTY_GROUP.name: "the group has members; stop them first",
    Code.UNKNOWN_TOPIC_OR_PARTITION.name: "there is no such partition",
}


class GroupOffsetOperations:
    """The client library lacks the request, so it goes to the group's coordinator over a socket of our own (`wire`)."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def delete(self, group: str, partitions: Iterable[TopicPartition]) -> Results[TopicPartition, None]:
        """Deletes the committed offsets of partitions; GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic."""
        deadline = self._connection.deadline()
        wanted = sorted(set(partitions))
        if not wanted:
            return Results()
        topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
        for at in wanted:
            topics.setdefault(at.topic, []).append(OffsetDeleteRequestPartition(partition_index=at.partition))
        request = OffsetDeleteRequest(
            group_id=group,
            topics=tuple(
                OffsetDeleteRequestTopic(name=name, partitions=tuple(indexes)) for name, indexes in topics.items()
            ),
        )
        told = call(
            self._coordinator(group, deadline),
            apis.OFFSET_DELETE,
            _DELETE_VERSION,
            request,
            OffsetDeleteResponse,
            self._connection.settings,
            deadline,
        )
        if told.error_code != Code.NONE:
            raise _error(told.error_code)
        codes = {
            TopicPartition(topic.name, each.partition_index): each.error_code
            for topic in told.topics
            for each in topic.partitions
        }
        return Results(
            {at: None for at, code in codes.items() if code == Code.NONE},
            {at: _error(code) for at, code in codes.items() if code != Code.NONE},
        )

    def _coordinator(self, group: str, deadline: Deadline) -> Address:
        told = call(
            self._connection.listener(),
            apis.FIND_COORDINATOR,
            _FIND_VERSION,
            FindCoordinatorRequest(key_type=GROUP, coordinator_keys=(group,)),
            FindCoordinatorResponse,
            self._connection.settings,
            deadline,
        )
        (found,) = told.coordinators
        if found.error_code != Code.NONE:
            raise AdminError(code_from(found.error_code).name, found.error_message or "the group has no coordinator")
        return Address(found.host, found.port)


def _error(code: int) -> AdminError:
    name = code_from(code).name
    return AdminError(name, _REASONS.get(name, name))
