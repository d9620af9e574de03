"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.broker.handlers.repeated_commits import RepeatedCommits
from penstock.broker.remote_groups import RemoteGroups
from penstock.broker.requests.context import RequestContext
from penstock.clock import Clock
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code
from penstock.groups.commits import Commit
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.events import MemberEpoch
from penstock.groups.offsets import Committed
from penstock.groups.reset import asks_for_reset
from penstock.ids import NO_TOPIC_ID, TopicId, TopicPartition
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

_PIECE = 1000
_PARTITION_ERRORS_UNTIL = 3
"""Until this version of OffsetFetch an error of the group stands with each partition too. Versions 0 and 1 have no
other place for it. aiokafka speaks version 3 and looks nowhere else: it would take the answer for "nothing is
committed", and begin anew. Not in later versions: librdkafka never reads a partition again that has an error of its
own.
"""
_MANY_GROUPS_FROM = 8
_TOPIC_IDS_FROM = 10
_NOT_FOUND_FROM = 9
"""Older versions answer a commit to an unknown group with an error about its generation."""


class _Asked(NamedTuple):
    """A topic of a commit: its name, how many partitions it has, and what is answered for one that it has not."""

    topic: OffsetCommitRequestTopic
    name: str
    partitions: int
    unknown: Code

    def answer(self, whole: Code | None, codes: Mapping[TopicPartition, Code]) -> OffsetCommitResponseTopic:
        """`whole` holds for every partition that there is; if it is None, `codes` has theirs."""
        answered = []
        for wanted in self.topic.partitions:
            index = wanted.partition_index
            code: Code | None = whole if 0 <= index < self.partitions else self.unknown
            if code is None:
                code = codes[TopicPartition(self.name, index)]
            answered.append(OffsetCommitResponsePartition(partition_index=index, error_code=code))
        return OffsetCommitResponseTopic(name=self.topic.name, topic_id=self.topic.topic_id, partitions=tuple(answered))


class CommittedOffsetHandlers:
    def __init__(
        self, coordinator: GroupCoordinator, remote: RemoteGroups, metadata: MetadataChanges, clock: Clock
    ) -> None:
        self._coordinator = coordinator
        self._remote = remote
        self._metadata = metadata
        self._clock = clock
        self._repeated = RepeatedCommits(self._find)

    async def offset_commit(self, request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
        now_ms = self._clock.now_ms()
        member = MemberEpoch(request.member_id, request.group_instance_id, request.generation_id_or_member_epoch)
        plain = self._repeated.plain(request, context.version, self._metadata.image, now_ms)
        if plain is not None:
            whole, codes = await self._commit(request.group_id, member, plain.commit)
            if whole is None and codes is plain.commit.shape.accepted:
                return plain.accepted
            named = [self._asked(topic, context.version) for topic in request.topics]
            return await _answer(named, whole, codes, context)
        expire_ms = now_ms + request.retention_time_ms if request.retention_time_ms >= 0 else -1
        offsets: dict[TopicPartition, Committed] = {}
        asked: list[_Asked] = []
        is_complete = True
        async for topic in context.work.over(request.topics):
            place = self._asked(topic, context.version)
            asked.append(place)
            _, name, count, _ = place
            for wanted in topic.partitions:
                index = wanted.partition_index
                if 0 <= index < count:
                    offsets[TopicPartition(name, index)] = Committed(
                        wanted.committed_offset,
                        wanted.committed_leader_epoch,
                        wanted.committed_metadata or "",
                        now_ms,
                        expire_ms,
                    )
                else:
                    is_complete = False
        whole, codes = await self._commit(request.group_id, member, offsets, is_complete=is_complete)
        return await _answer(asked, whole, codes, context)

    async def offset_fetch(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
        if context.version >= _MANY_GROUPS_FROM:
            # A member requests its own group. A client that requests many could make this broker send as many requests.
            may_ask_others = len(request.groups) == 1
            groups = [
                await self._fetch(group, context, request.require_stable, may_ask_others=may_ask_others)
                async for group in context.work.over(request.groups)
            ]
            return OffsetFetchResponse(groups=tuple(groups))
        wanted = (
            None
            if request.topics is None
            else tuple(
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in request.topics
            )
        )
        asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=wanted)
        group = await self._fetch(asked, context, request.require_stable)
        topics: Sequence[OffsetFetchResponseTopics] = group.topics
        if group.error_code and context.version <= _PARTITION_ERRORS_UNTIL:
            topics = _refused(wanted or (), Code(group.error_code))
        return OffsetFetchResponse(
            topics=tuple(OffsetFetchResponseTopic(name=topic.name, partitions=topic.partitions) for topic in topics),
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
            known = 0 <= index < self._partitions_of(name)
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
        self,
        group_id: str,
        member: MemberEpoch,
        offsets: Mapping[TopicPartition, Committed],
        *,
        is_complete: bool = True,
    ) -> tuple[Code | None, Mapping[TopicPartition, Code]]:
        try:
            if isinstance(offsets, Commit):  # without metadata, so it is no reset
                return await self._coordinator.commit(group_id, member, offsets)
            if member.is_no_member and asks_for_reset(offset.metadata for offset in offsets.values()):
                if not is_complete:
                    return Code.OPERATION_NOT_ATTEMPTED, {}
                unmarked = {at: offset._replace(metadata="") for at, offset in offsets.items()}
                return await self._coordinator.reset(group_id, unmarked)
            return await self._coordinator.commit(group_id, member, offsets)
        except ApiError as error:
            return error.code, {}

    async def _fetch(
        self,
        group: OffsetFetchRequestGroup,
        context: RequestContext,
        require_stable: bool,
        *,
        may_ask_others: bool = True,
    ) -> OffsetFetchResponseGroup:
        version = context.version
        try:
            await self._coordinator.check_reader(group.group_id, group.member_id, group.member_epoch)
            if group.topics is None:
                offsets = await self._offsets(group.group_id, None, require_stable)
                await context.work.grow(1 + len(offsets))
                return OffsetFetchResponseGroup(
                    group_id=group.group_id, topics=await self._all_topics(offsets, context)
                )
            topics = []
            async for topic in context.work.over(group.topics):
                name, code = self._name_of(topic.name, topic.topic_id, version)
                partitions: list[OffsetFetchResponsePartition] = []
                async for some in context.work.over(_in_pieces(topic.partition_indexes)):
                    places = [TopicPartition(name, index) for index in some]
                    offsets = await self._offsets(group.group_id, places, require_stable)
                    if version >= _TOPIC_IDS_FROM and not name:
                        offsets = dict.fromkeys(places, code)
                    partitions += [_partition(at.partition, offsets[at]) for at in places]
                topics.append(
                    OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions))
                )
            return OffsetFetchResponseGroup(group_id=group.group_id, topics=tuple(topics))
        except ApiError as error:
            is_elsewhere = error.code is Code.NOT_COORDINATOR
            if is_elsewhere and may_ask_others and not context.caller.is_inter_broker:
                answer = await self._remote.offsets(group, version, require_stable=require_stable)
                if answer is not None:
                    return answer
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)

    async def _offsets(
        self, group_id: str, places: list[TopicPartition] | None, require_stable: bool
    ) -> dict[TopicPartition, Committed | Code]:
        """Committed offsets, or why there is none: a client that wants stable ones waits for the transaction to end."""
        held, pending = await self._coordinator.fetch(group_id, places)
        offsets: dict[TopicPartition, Committed | Code] = {at: found or Code.NONE for at, found in held.items()}
        if require_stable:
            unstable = pending if places is None else pending.intersection(places)
            offsets |= dict.fromkeys(unstable, Code.UNSTABLE_OFFSET_COMMIT)
        return offsets

    async def _all_topics(
        self, offsets: dict[TopicPartition, Committed | Code], context: RequestContext
    ) -> tuple[OffsetFetchResponseTopics, ...]:
        by_topic: dict[str, list[TopicPartition]] = {}
        for at in offsets:
            by_topic.setdefault(at.topic, []).append(at)
        known = self._metadata.image.topics
        return tuple(
            [
                OffsetFetchResponseTopics(
                    name=name,
                    topic_id=known[name].id if name in known else NO_TOPIC_ID,
                    partitions=tuple(_partition(at.partition, offsets[at]) for at in places),
                )
                async for name, places in context.work.over(by_topic.items())
            ]
        )

    def _name_of(self, name: str, topic_id: TopicId, version: int) -> tuple[str, Code]:
        """The topic's name, and the error if there is no such topic."""
        if version < _TOPIC_IDS_FROM:
            return name, Code.UNKNOWN_TOPIC_OR_PARTITION
        return self._metadata.image.topic_names_by_id.get(topic_id, ""), Code.UNKNOWN_TOPIC_ID

    def _asked(self, topic: OffsetCommitRequestTopic, version: int) -> _Asked:
        name, unknown = self._name_of(topic.name, topic.topic_id, version)
        return _Asked(topic, name, self._partitions_of(name), unknown)

    def _find(self, topic: OffsetCommitRequestTopic, version: int) -> tuple[str, int]:
        name, _ = self._name_of(topic.name, topic.topic_id, version)
        return name, self._partitions_of(name)

    def _partitions_of(self, name: str) -> int:
        topic = self._metadata.image.seen(name)
        return 0 if topic is None else len(topic.partitions)


async def _answer(
    asked: Sequence[_Asked], whole: Code | None, codes: Mapping[TopicPartition, Code], context: RequestContext
) -> OffsetCommitResponse:
    """The answer to a commit: `whole` is what was said of all of it; if it is None, `codes` has what was of each."""
    if whole is Code.GROUP_ID_NOT_FOUND and context.version < _NOT_FOUND_FROM:
        whole = Code.ILLEGAL_GENERATION
    if whole is None and not any(codes.values()):
        whole = Code.NONE
    topics = [topic.answer(whole, codes) async for topic in context.work.over(asked)]
    return OffsetCommitResponse(topics=tuple(topics))


def _in_pieces(indexes: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(indexes), _PIECE):
        yield indexes[at : at + _PIECE]


def _refused(asked: Sequence[OffsetFetchRequestTopics], code: Code) -> list[OffsetFetchResponseTopics]:
    """Every requested partition, with the reason why the answer has no offset for it."""
    return [
        OffsetFetchResponseTopics(
            name=topic.name, partitions=tuple(_partition(index, code) for index in topic.partition_indexes)
        )
        for topic in asked
    ]


def _partition(index: int, found: Committed | Code) -> OffsetFetchResponsePartition:
    if isinstance(found, Code):
        return OffsetFetchResponsePartition(partition_index=index, error_code=found)
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )
