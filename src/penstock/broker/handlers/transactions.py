"""Requests of transactional producers: AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.broker.coordinators import Coordinators
from penstock.broker.known_brokers import KnownBrokers
from penstock.broker.requests.context import RequestContext
from penstock.clock import Clock
from penstock.cluster.decisions.retired_partitions import is_writable
from penstock.cluster.metadata import INTERNAL_TOPICS, OFFSETS_TOPIC
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code
from penstock.groups.events import MemberEpoch
from penstock.groups.offsets import Committed
from penstock.ids import TopicPartition
from penstock.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from penstock.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from penstock.replication.state_log import GuardedTransaction
from penstock.transactions.state_machine import BUMPING_VERSION, Producer

_FENCED_FROM = 2
"""Older versions answer a fenced producer that its epoch is wrong."""
_SEVERAL_FROM = 4
"""From this version on AddPartitionsToTxn names several transactions. The leader of a partition sends it, for clients
that do not ask themselves (KIP-890). Most clients use the versions before; a few use this one, as Kafka lets them.
"""
_BUMPING_END_FROM = 5
_ADDING_COMMIT_FROM = 5
"""A commit of offsets adds the group to the transaction itself."""
_OLD = 0
"""The transaction version of clients that ask before they write."""


class TransactionHandlers:
    def __init__(
        self, coordinators: Coordinators, metadata: MetadataChanges, brokers: KnownBrokers, clock: Clock
    ) -> None:
        self._transactions = coordinators.transactions.coordinator()
        self._coordinators = coordinators
        self._metadata = metadata
        self._brokers = brokers
        self._clock = clock

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        if context.version >= _SEVERAL_FROM:
            return await self._add_to_several(request, context)
        topics = request.v3_and_below_topics
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        wanted = _partitions(topics)
        await context.work.pause()
        refused = {at: code async for at in context.work.over(wanted) if (code := self._refusal(at)) is not Code.NONE}
        codes = await self._add(request.v3_and_below_transactional_id, producer, wanted, refused, _OLD)
        codes = {at: _spoken(code, context.version) for at, code in codes.items()}
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topic_results(topics, codes))

    async def add_offsets(self, request: AddOffsetsToTxnRequest, context: RequestContext) -> AddOffsetsToTxnResponse:
        producer = Producer(request.producer_id, request.producer_epoch)
        try:
            _require_names(request.transactional_id, request.group_id)
            at = await self._coordinators.groups.coordinator().place_of(request.group_id)
            code = await self._transactions.add_partitions(request.transactional_id, producer, [at], _OLD)
        except ApiError as error:
            code = error.code
        return AddOffsetsToTxnResponse(error_code=_spoken(code, context.version))

    async def commit_offsets(self, request: TxnOffsetCommitRequest, context: RequestContext) -> TxnOffsetCommitResponse:
        now_ms = self._clock.now_ms()
        codes: dict[TopicPartition, Code] = {}
        offsets: dict[TopicPartition, Committed] = {}
        async for topic in context.work.over(request.topics):
            for wanted in topic.partitions:
                at = TopicPartition(topic.name, wanted.partition_index)
                if not self._exists(at):
                    codes[at] = Code.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                offsets[at] = Committed(
                    wanted.committed_offset, wanted.committed_leader_epoch, wanted.committed_metadata or "", now_ms
                )
        try:
            codes.update(await self._commit(request, offsets, context.version))
        except ApiError as error:
            codes |= dict.fromkeys(offsets, error.code)
        return TxnOffsetCommitResponse(
            topics=tuple(
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        TxnOffsetCommitResponsePartition(
                            partition_index=wanted.partition_index,
                            error_code=codes[TopicPartition(topic.name, wanted.partition_index)],
                        )
                        for wanted in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    async def end(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        producer = Producer(request.producer_id, request.producer_epoch)
        version = BUMPING_VERSION if context.version >= _BUMPING_END_FROM else _OLD
        try:
            _require_names(request.transactional_id)
            decision = await self._transactions.end(
                request.transactional_id, producer, version, commits=request.committed
            )
        except ApiError as error:
            return EndTxnResponse(error_code=error.code)
        return EndTxnResponse(
            error_code=_spoken(decision.code, context.version),
            producer_id=decision.producer.id,
            producer_epoch=decision.producer.epoch,
        )

    async def _add_to_several(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        """What the leader of a partition, or the coordinator of a group, asks about its clients' transactions, or a
        client about its own.
        """
        refusal = self._refusal_to_broker if self._brokers.is_broker(context.caller) else self._refusal
        results = []
        async for asked in context.work.over(request.transactions):
            producer = Producer(asked.producer_id, asked.producer_epoch)
            wanted = _partitions(asked.topics)
            if asked.verify_only:
                codes = await self._verify(asked.transactional_id, producer, wanted)
            else:
                refused = {at: code for at in wanted if (code := refusal(at)) is not Code.NONE}
                codes = await self._add(asked.transactional_id, producer, wanted, refused, BUMPING_VERSION)
            await context.work.pause()
            results.append(
                AddPartitionsToTxnResult(
                    transactional_id=asked.transactional_id, topic_results=_topic_results(asked.topics, codes)
                )
            )
        return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))

    async def _verify(
        self, transactional_id: str, producer: Producer, wanted: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Code]:
        try:
            _require_names(transactional_id)
            return await self._transactions.verify(transactional_id, producer, wanted)
        except ApiError as error:
            return dict.fromkeys(wanted, error.code)

    async def _add(
        self,
        transactional_id: str,
        producer: Producer,
        wanted: Sequence[TopicPartition],
        refused: Mapping[TopicPartition, Code],
        version: int,
    ) -> dict[TopicPartition, Code]:
        """All of the partitions are added, or none."""
        try:
            _require_names(transactional_id)
            if refused:
                return dict.fromkeys(wanted, Code.OPERATION_NOT_ATTEMPTED) | dict(refused)
            code = await self._transactions.add_partitions(transactional_id, producer, wanted, version)
        except ApiError as error:
            code = error.code
        return dict.fromkeys(wanted, code)

    async def _commit(
        self, request: TxnOffsetCommitRequest, offsets: Mapping[TopicPartition, Committed], version: int
    ) -> Mapping[TopicPartition, Code]:
        _require_names(request.transactional_id, request.group_id)
        groups = self._coordinators.groups.coordinator()
        producer = Producer(request.producer_id, request.producer_epoch)
        at = await groups.place_of(request.group_id)
        guard = groups.guard(at, producer.id)
        adds = version >= _ADDING_COMMIT_FROM
        try:
            joined = await self._coordinators.remote_transactions.join(
                request.transactional_id, producer, [at], version=BUMPING_VERSION, adds=adds
            )
            code = joined[at]
        except ApiError as error:
            code = error.code
        if code is Code.TRANSACTION_ABORTABLE and not adds:
            code = Code.INVALID_TXN_STATE
        if code is Code.NOT_COORDINATOR:
            # Of the transaction: the client would look for another coordinator of its group.
            code = Code.COORDINATOR_NOT_AVAILABLE
        if code is not Code.NONE:
            raise ApiError(code)
        member = MemberEpoch(request.member_id, request.group_instance_id, request.generation_id)
        transaction = GuardedTransaction(producer.id, producer.epoch, guard)
        whole, codes = await groups.commit(request.group_id, member, offsets, transaction)
        if whole is Code.GROUP_ID_NOT_FOUND:
            whole = Code.ILLEGAL_GENERATION
        return codes if whole is None else dict.fromkeys(offsets, whole)

    def _refusal(self, at: TopicPartition) -> Code:
        """Why a client may not add this partition; NONE if it may."""
        if at.topic in INTERNAL_TOPICS:
            return Code.TOPIC_AUTHORIZATION_FAILED
        return self._missing(at)

    def _refusal_to_broker(self, at: TopicPartition) -> Code:
        """Why a broker may not add this partition; NONE if it may.

        The coordinator of a group adds the partition in which it writes the group's offsets. A partition has to be
        known here: else the markers would not find it if the transaction were to end now.
        """
        return self._missing(at) if at.topic == OFFSETS_TOPIC else self._refusal(at)

    def _missing(self, at: TopicPartition) -> Code:
        topic = self._metadata.image.topics.get(at.topic)
        if topic is not None and topic.view_of is not None:
            return Code.INVALID_TOPIC_EXCEPTION
        if topic is None or not is_writable(topic, at.partition):
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        return Code.NONE

    def _exists(self, at: TopicPartition) -> bool:
        topic = self._metadata.image.seen(at.topic)
        return topic is not None and 0 <= at.partition < len(topic.partitions)


def _require_names(transactional_id: str, group_id: str = "-") -> None:
    if not transactional_id:
        raise ApiError(Code.INVALID_REQUEST, "the transactional id is empty")
    if not group_id:
        raise ApiError(Code.INVALID_GROUP_ID)


def _spoken(code: Code, version: int) -> Code:
    """The code in the words of a version."""
    return Code.INVALID_PRODUCER_EPOCH if code is Code.PRODUCER_FENCED and version < _FENCED_FROM else code


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _topic_results(
    topics: Iterable[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, Code]
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes[TopicPartition(topic.name, index)]
                )
                for index in topic.partitions
            ),
        )
        for topic in topics
    )
