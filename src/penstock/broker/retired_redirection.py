"""Appends batches that are sent to a retired partition to its successor.

In the successor's log a producer has another id for them (`ids.stand_in_id`), because it numbers its batches for each
partition separately. The transaction coordinator knows only the partition that the producer named, so the broker asks
about that one. `docs/retiring.md` says what clients see of this; `coordinators.py` writes the markers.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.transaction_verification import Taker, TransactionVerification
from penstock.cluster.decisions import retired_partitions
from penstock.cluster.metadata import MetadataImage
from penstock.errors import ApiError, Code
from penstock.ids import PRODUCER_IDS_END, TopicPartition, stand_in_id
from penstock.protocol.produce import ProduceRequest
from penstock.records.batch import stamp_producer
from penstock.replication.inspection import Inspection
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.replication.waiters import not_confirmed
from penstock.storage.admission import check_batch
from penstock.storage.contract import Appended


class RetiredRedirection:
    """Appends batches that were sent to a retired partition."""

    def __init__(
        self,
        replicas: Replicas,
        verification: TransactionVerification,
        inspection: Inspection,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._replicas = replicas
        self._inspection = inspection
        self._verification = verification
        self._image = image

    def successor_of_gone(self, at: TopicPartition) -> int | None:
        """The partition that takes messages for a partition that its topic no longer has."""
        return retired_partitions.successor_of_gone(self._image(), at)

    async def append(
        self,
        version: int,
        request: ProduceRequest,
        at: TopicPartition,
        batch: memoryview,
        successor: int,
        *,
        follows: bool = True,
    ) -> tuple[Partition, Appended]:
        """Appends the batch to the successor of `at`; what `follows` means, RetiredError says."""
        partition = self._replicas.find(at.topic, successor)
        header = check_batch(batch, partition.log.config.max_message_bytes)
        guard = None
        if header.producer_id >= PRODUCER_IDS_END:
            raise ApiError(Code.INVALID_RECORD, f"{header.producer_id} is no producer id")
        if header.producer_id >= 0:
            taker = Taker(partition.log.producers, stand_in_id(header.producer_id, at.partition))
            if not follows and not taker.producers.knows(taker.producer_id):
                raise ApiError(
                    Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} sent sequence {header.base_sequence} too early",
                )
            guard = await self._verification.guard_of(version, request.transactional_id, at, header, taker)
            taker.producers.introduce(taker.producer_id, header.producer_epoch, header.base_sequence)
            stamp_producer(batch, taker.producer_id)
        inspected = await self._inspection.inspect(partition, batch)
        appended = await partition.append(batch, request.acks, guard=guard, inspected=inspected)
        term = partition.term
        retired = self._replicas.here(at)
        if retired is not None:
            try:
                await retired.cancel_timers(batch, request.acks)
            except ApiError as error:
                if error.code is Code.NOT_LEADER_OR_FOLLOWER:
                    raise not_confirmed() from error
                raise
            partition.check_term(term)
        return partition, appended
