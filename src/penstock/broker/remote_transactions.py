"""Transactions across brokers: a partition's leader asks a coordinator, a coordinator ends them at the leaders.

Either may be this broker or another; callers need not know. Requests to other brokers are those that Kafka's brokers
use among themselves (AddPartitionsToTxn, WriteTxnMarkers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker.peers import Peers
from penstock.cluster.decisions.retired_partitions import led_partition
from penstock.cluster.metadata import TRANSACTIONS_TOPIC
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code, PeerError
from penstock.ids import BrokerId, TopicPartition
from penstock.protocol.apis import ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS
from penstock.replication.placement import partition_for

if TYPE_CHECKING:
    from penstock.broker.coordinators import Coordinators
    from penstock.replication.transaction_marker import TransactionMarker
    from penstock.transactions.state_machine import Producer

_ADD_VERSION = 5
_MARKERS_VERSION = 1


class RemoteTransactions:
    """The transactions of the cluster, as one broker sees them."""

    def __init__(self, me: BrokerId, coordinators: Coordinators, metadata: MetadataChanges, peers: Peers) -> None:
        self._me = me
        self._coordinators = coordinators
        self._metadata = metadata
        self._peers = peers

    async def join(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        version: int,
        adds: bool,
    ) -> dict[TopicPartition, Code]:
        """Adds partitions to a transaction, or asks whether they are in it; the outcome for each."""
        coordinator = await self._coordinator_of(transactional_id)
        if coordinator != self._me:
            return await self._ask(coordinator, transactional_id, producer, partitions, adds=adds)
        local = self._coordinators.transactions.coordinator()
        if not adds:
            return await local.verify(transactional_id, producer, partitions)
        return dict.fromkeys(partitions, await local.add_partitions(transactional_id, producer, partitions, version))

    async def write_marker(self, at: TopicPartition, marker: TransactionMarker) -> None:
        """Ends a transaction in one of the logs that it touched, wherever that is led."""
        topic = self._metadata.image.topics.get(at.topic)
        partition = None if topic is None else led_partition(topic, at.partition)
        if partition is None:
            raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        leader = partition.leader
        if leader == self._me:
            await self._coordinators.write_marker(at, marker)
            return
        from penstock.protocol.messages.write_txn_markers import (
            WritableTxnMarker,
            WritableTxnMarkerTopic,
            WriteTxnMarkersRequest,
        )

        request = WriteTxnMarkersRequest(
            markers=(
                WritableTxnMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    transaction_result=marker.is_commit,
                    coordinator_epoch=marker.coordinator_epoch,
                    topics=(WritableTxnMarkerTopic(name=at.topic, partition_indexes=(at.partition,)),),
                ),
            )
        )
        try:
            response = await self._peers.call(leader, WRITE_TXN_MARKERS, _MARKERS_VERSION, request)
        except PeerError as error:
            raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        code = Code(response.markers[0].topics[0].partitions[0].error_code)
        if code is not Code.NONE:
            raise ApiError(code)

    async def _coordinator_of(self, transactional_id: str) -> BrokerId:
        partitions = await self._coordinators.transactions.coordinator().prepare()
        topic = self._metadata.image.topics[TRANSACTIONS_TOPIC]
        return topic.partitions[partition_for(transactional_id, partitions)].leader

    async def _ask(
        self,
        coordinator: BrokerId,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, Code]:
        from penstock.protocol.messages.add_partitions_to_txn import (
            AddPartitionsToTxnRequest,
            AddPartitionsToTxnTopic,
            AddPartitionsToTxnTransaction,
        )
        from penstock.transactions.records import by_topic

        request = AddPartitionsToTxnRequest(
            transactions=(
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    verify_only=not adds,
                    topics=tuple(
                        AddPartitionsToTxnTopic(name=name, partitions=indexes)
                        for name, indexes in by_topic(partitions).items()
                    ),
                ),
            )
        )
        try:
            response = await self._peers.call(coordinator, ADD_PARTITIONS_TO_TXN, _ADD_VERSION, request)
        except PeerError:
            return dict.fromkeys(partitions, Code.COORDINATOR_NOT_AVAILABLE)
        if response.error_code:
            # It does not know yet that this broker is a member: clients try again.
            return dict.fromkeys(partitions, Code.COORDINATOR_NOT_AVAILABLE)
        return {
            TopicPartition(topic.name, result.partition_index): Code(result.partition_error_code)
            for transaction in response.results_by_transaction
            for topic in transaction.topic_results
            for result in topic.results_by_partition
        }
