"""ListTransactions, DescribeTransactions and DescribeProducers; and WriteTxnMarkers, which brokers send each other.

An operator ends a hanging transaction with WriteTxnMarkers too, through the inter-broker listener.
"""

from __future__ import annotations

from penstock.broker.coordinators import Coordinators
from penstock.broker.known_brokers import KnownBrokers
from penstock.broker.requests.context import RequestContext
from penstock.errors import ApiError, Code, StorageError, code_of
from penstock.groups.consumer.pattern import Pattern, PatternError
from penstock.ids import TopicPartition
from penstock.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from penstock.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from penstock.protocol.messages.describe_transactions import TransactionState as Described
from penstock.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.protocol.messages.list_transactions import TransactionState as Listed
from penstock.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.replication.replicas import Replicas
from penstock.replication.transaction_marker import TransactionMarker
from penstock.transactions.records import by_topic
from penstock.transactions.state import Status, TransactionState


class TransactionAdminHandlers:
    def __init__(self, coordinators: Coordinators, replicas: Replicas, brokers: KnownBrokers) -> None:
        self._coordinators = coordinators
        self._brokers = brokers
        self._transactions = coordinators.transactions.coordinator()
        self._replicas = replicas

    async def list_transactions(
        self, request: ListTransactionsRequest, context: RequestContext
    ) -> ListTransactionsResponse:
        if self._transactions.is_loading:
            return ListTransactionsResponse(error_code=Code.COORDINATOR_LOAD_IN_PROGRESS)
        pattern: Pattern | None = None
        try:
            if request.transactional_id_pattern:
                pattern = Pattern(request.transactional_id_pattern)
        except PatternError:
            return ListTransactionsResponse(error_code=Code.INVALID_REGULAR_EXPRESSION)
        names = {status.shown: status for status in Status}
        statuses = {names[name] for name in request.state_filters if name in names}
        producers = frozenset(request.producer_id_filters)
        began_ms = self._transactions.now_ms() - request.duration_filter

        def is_wanted(name: str, state: TransactionState) -> bool:
            is_old_enough = request.duration_filter < 0 or (0 <= state.started_ms <= began_ms)
            return (
                (not request.state_filters or state.status in statuses)
                and (not producers or state.producer_id in producers)
                and is_old_enough
                and (pattern is None or pattern.matches(name))
            )

        listed = []
        async for name, state in context.work.over(list(self._transactions.states())):
            if is_wanted(name, state):
                await context.work.grow(1)
                listed.append(
                    Listed(transactional_id=name, producer_id=state.producer_id, transaction_state=state.status.shown)
                )
        return ListTransactionsResponse(
            unknown_state_filters=tuple(name for name in request.state_filters if name not in names),
            transaction_states=tuple(listed),
        )

    async def describe_transactions(
        self, request: DescribeTransactionsRequest, context: RequestContext
    ) -> DescribeTransactionsResponse:
        described = []
        # A transaction is described once, however often it is named.
        async for name in context.work.over(dict.fromkeys(request.transactional_ids)):
            described.append(await self._described(name))
            await context.work.grow(1 + sum(len(topic.partitions) for topic in described[-1].topics))
        return DescribeTransactionsResponse(transaction_states=tuple(described))

    async def describe_producers(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse:
        topics = []
        async for topic in context.work.over(request.topics):
            partitions = []
            # A partition is described once, however often a topic's entry names it.
            async for index in context.work.over(dict.fromkeys(topic.partition_indexes)):
                partitions.append(self._producers(topic.name, index))
                await context.work.grow(1 + len(partitions[-1].active_producers))
            topics.append(TopicResponse(name=topic.name, partitions=tuple(partitions)))
        return DescribeProducersResponse(topics=tuple(topics))

    async def write_markers(self, request: WriteTxnMarkersRequest, context: RequestContext) -> WriteTxnMarkersResponse:
        is_broker = self._brokers.is_broker(context.caller)
        results = []
        async for asked in context.work.over(request.markers):
            marker = TransactionMarker(
                asked.producer_id, asked.producer_epoch, asked.transaction_result, asked.coordinator_epoch
            )
            topics = []
            async for topic in context.work.over(asked.topics):
                partitions = tuple(
                    [
                        WritableTxnMarkerPartitionResult(
                            partition_index=index,
                            error_code=await self._mark(TopicPartition(topic.name, index), marker)
                            if is_broker
                            else Code.CLUSTER_AUTHORIZATION_FAILED,
                        )
                        async for index in context.work.over(topic.partition_indexes)
                    ]
                )
                topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
            results.append(WritableTxnMarkerResult(producer_id=asked.producer_id, topics=tuple(topics)))
        return WriteTxnMarkersResponse(markers=tuple(results))

    async def _described(self, name: str) -> Described:
        try:
            state = await self._transactions.find(name)
        except ApiError as error:
            return Described(transactional_id=name, error_code=error.code)
        if state is None:
            return Described(transactional_id=name, error_code=Code.TRANSACTIONAL_ID_NOT_FOUND)
        return Described(
            transactional_id=name,
            transaction_state=state.status.shown,
            transaction_timeout_ms=state.timeout_ms,
            transaction_start_time_ms=state.started_ms,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            topics=tuple(
                TopicData(topic=topic, partitions=indexes) for topic, indexes in by_topic(state.partitions).items()
            ),
        )

    def _producers(self, topic: str, index: int) -> PartitionResponse:
        try:
            log = self._replicas.find(topic, index).log
        except ApiError as error:
            return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
        return PartitionResponse(
            partition_index=index,
            active_producers=tuple(ProducerState(**found._asdict()) for found in log.producers.describe()),
        )

    async def _mark(self, at: TopicPartition, marker: TransactionMarker) -> Code:
        try:
            await self._coordinators.write_marker(at, marker)
        except (ApiError, StorageError) as error:
            return code_of(error)
        return Code.NONE
