"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.clock import Clock
from penstock.cluster.controller import Controller
from penstock.errors import ApiError, Code
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.offsets import Committed
from penstock.ids import NO_TOPIC_ID, TopicId, TopicPartition
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
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

_MANY_GROUPS_FROM = 8
_TOPIC_IDS_FROM = 10
_NOT_FOUND_FROM = 9
"""Before, a commit to a group that does not exist is told that its generation is wrong."""


class CommitHandlers:
    def __init__(self, coordinator: GroupCoordinator, controller: Controller, clock: Clock) -> None:
        self._coordinator = coordinator
        self._controller = controller
        self._clock = clock

    async def offset_commit(self, request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
        now_ms = self._clock.now_ms()
        expire_ms = now_ms + request.retention_time_ms if request.retention_time_ms >= 0 else -1
        offsets: dict[TopicPartition, Committed] = {}
        refused: dict[tuple[str, TopicId, int], Code] = {}
        for topic in request.topics:
            name, code = self._name_of(topic.name, topic.topic_id, context.version)
            for wanted in topic.partitions:
                if not self._exists(name, wanted.partition_index):
                    refused[topic.name, topic.topic_id, wanted.partition_index] = code
                    continue
                offsets[TopicPartition(name, wanted.partition_index)] = Committed(
                    wanted.committed_offset,
                    wanted.committed_leader_epoch,
                    wanted.committed_metadata or "",
                    now_ms,
                    expire_ms,
                )
        member = (request.member_id, request.group_instance_id, request.generation_id_or_member_epoch)
        whole, codes = await self._commit(request.group_id, member, offsets)
        if whole is Code.GROUP_ID_NOT_FOUND and context.version < _NOT_FOUND_FROM:
            whole = Code.ILLEGAL_GENERATION

        def answer(topic: str, topic_id: TopicId, index: int) -> Code:
            if (topic, topic_id, index) in refused:
                return refused[topic, topic_id, index]
            name, _ = self._name_of(topic, topic_id, context.version)
            return whole or codes.get(TopicPartition(name, index), Code.NONE)

        return OffsetCommitResponse(
            topics=tuple(
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        OffsetCommitResponsePartition(
                            partition_index=wanted.partition_index,
                            error_code=answer(topic.name, topic.topic_id, wanted.partition_index),
                        )
                        for wanted in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    async def offset_fetch(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
        if context.version >= _MANY_GROUPS_FROM:
            groups = [await self._fetch(group, context.version) for group in request.groups]
            return OffsetFetchResponse(groups=tuple(groups))
        wanted = (
            None
            if request.topics is None
            else tuple(
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in request.topics
            )
        )
        group = await self._fetch(OffsetFetchRequestGroup(group_id=request.group_id, topics=wanted), context.version)
        return OffsetFetchResponse(
            topics=tuple(
                OffsetFetchResponseTopic(name=topic.name, partitions=topic.partitions) for topic in group.topics
            ),
            error_code=group.error_code,
        )

    async def offset_delete(self, request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
        if not request.group_id:
            return OffsetDeleteResponse(error_code=Code.INVALID_GROUP_ID)
        wanted = [
            TopicPartition(topic.name, found.partition_index) for topic in request.topics for found in topic.partitions
        ]
        try:
            code, codes = await self._coordinator.delete_offsets(request.group_id, wanted)
        except ApiError as error:
            return OffsetDeleteResponse(error_code=error.code)
        if code is not Code.NONE:
            return OffsetDeleteResponse(error_code=code)

        def result(name: str, index: int) -> OffsetDeleteResponsePartition:
            known = self._exists(name, index)
            error = codes[TopicPartition(name, index)] if known else Code.UNKNOWN_TOPIC_OR_PARTITION
            return OffsetDeleteResponsePartition(partition_index=index, error_code=error)

        return OffsetDeleteResponse(
            topics=tuple(
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=tuple(result(topic.name, found.partition_index) for found in topic.partitions),
                )
                for topic in request.topics
            )
        )

    async def _commit(
        self, group_id: str, member: tuple[str, str | None, int], offsets: dict[TopicPartition, Committed]
    ) -> tuple[Code | None, dict[TopicPartition, Code]]:
        try:
            return await self._coordinator.commit(group_id, member, offsets)
        except ApiError as error:
            return error.code, {}

    async def _fetch(self, group: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponseGroup:
        try:
            if group.topics is None:
                held = await self._coordinator.fetch(group.group_id, None)
                return OffsetFetchResponseGroup(group_id=group.group_id, topics=self._all_topics(held))
            topics = []
            for topic in group.topics:
                name, code = self._name_of(topic.name, topic.topic_id, version)
                places = [TopicPartition(name, index) for index in topic.partition_indexes]
                held = await self._coordinator.fetch(group.group_id, places)
                missing = code if version >= _TOPIC_IDS_FROM and not name else Code.NONE
                partitions = tuple(_partition(at.partition, held[at], missing) for at in places)
                topics.append(
                    OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
                )
            return OffsetFetchResponseGroup(group_id=group.group_id, topics=tuple(topics))
        except ApiError as error:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)

    def _all_topics(self, held: dict[TopicPartition, Committed | None]) -> tuple[OffsetFetchResponseTopics, ...]:
        by_topic: dict[str, list[TopicPartition]] = {}
        for at in held:
            by_topic.setdefault(at.topic, []).append(at)
        known = self._controller.image.topics
        return tuple(
            OffsetFetchResponseTopics(
                name=name,
                topic_id=known[name].id if name in known else NO_TOPIC_ID,
                partitions=tuple(_partition(at.partition, held[at]) for at in places),
            )
            for name, places in by_topic.items()
        )

    def _name_of(self, name: str, topic_id: TopicId, version: int) -> tuple[str, Code]:
        """The topic's name, and the error if there is no such topic."""
        if version < _TOPIC_IDS_FROM:
            return name, Code.UNKNOWN_TOPIC_OR_PARTITION
        return self._controller.image.topic_names_by_id.get(topic_id, ""), Code.UNKNOWN_TOPIC_ID

    def _exists(self, name: str, index: int) -> bool:
        topic = self._controller.image.topics.get(name)
        return topic is not None and 0 <= index < len(topic.partitions)


def _partition(index: int, committed: Committed | None, code: Code = Code.NONE) -> OffsetFetchResponsePartition:
    if committed is None:
        return OffsetFetchResponsePartition(partition_index=index, error_code=code)
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )
