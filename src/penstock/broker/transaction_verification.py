"""Checks before an append whether a transactional batch belongs to an ongoing transaction (KIP-890).

The broker looks at the log first: if the transaction is open there already, nothing else is needed. Otherwise it takes
the log's guard and then asks the coordinator, in this order: a marker in between voids the guard, and the producer has
to try again. What a log says counts only while its replica leads: one that begins to lead meanwhile may have another
log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.broker.remote_transactions import RemoteTransactions
from penstock.cluster.metadata import INTERNAL_TOPICS
from penstock.errors import ApiError, Code
from penstock.ids import TopicPartition
from penstock.protocol.produce import ProducePartition
from penstock.records.batch import HEADER_BYTES, BatchHeader, read_header
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.storage.producers import ProducerState

_ADDING_FROM = 12
"""From this version of Produce on, writing to a partition adds it to the transaction."""
_ABORTABLE_FROM = 11
_COORDINATOR_IS_AWAY = (
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.NOT_COORDINATOR,
)

Verified = dict[TopicPartition, int | ApiError]
"""The guard with which a batch may be appended, or why it may not; what is not in it needs no guard."""


class Taker(NamedTuple):
    """The log that takes a batch, and the name under which it knows the producer."""

    producers: ProducerState
    producer_id: int


class TransactionVerification:
    def __init__(self, replicas: Replicas, transactions: RemoteTransactions) -> None:
        self._replicas = replicas
        self._transactions = transactions

    async def verify(self, version: int, transactional_id: str, wanted: Sequence[ProducePartition]) -> Verified:
        """Asks for all batches of a request that are the first of their transaction in their partition."""
        verified: Verified = {}
        by_producer: dict[tuple[int, int], list[TopicPartition]] = {}
        led: list[tuple[TopicPartition, Partition, int, int]] = []
        for topic, index, records in wanted:
            if records is None or len(records) < HEADER_BYTES or topic in INTERNAL_TOPICS:
                continue
            header = read_header(records)
            if not header.is_transactional:
                continue
            at = TopicPartition(topic, index)
            try:
                partition = self._replicas.find(topic, index)
                if partition.log.successor is not None:
                    continue  # asked when it is known which log takes the batch
                partition.check_is_leader()
            except ApiError as error:
                verified[at] = error
                continue
            led.append((at, partition, partition.term, header.producer_id))
            producers = partition.log.producers
            if not producers.has_open(header.producer_id, header.producer_epoch):
                verified[at] = producers.guard(header.producer_id)
                by_producer.setdefault((header.producer_id, header.producer_epoch), []).append(at)
        for producer, places in by_producer.items():
            for at, code in (await self._ask(version, transactional_id, producer, places)).items():
                if code is not Code.NONE:
                    verified[at] = _not_in(at, transactional_id, code, version)
        for at, partition, term, producer_id in led:
            guard = verified.get(at)
            if isinstance(guard, ApiError):
                continue
            if partition.term != term:
                # What its log says of the transaction now was not looked at.
                verified[at] = ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"{at} has changed its role meanwhile")
            elif guard is not None and guard != partition.log.producers.guard(producer_id):
                verified[at] = _ended_meanwhile(at, transactional_id, version)
        return verified

    async def guard_of(
        self, version: int, transactional_id: str | None, at: TopicPartition, header: BatchHeader, taker: Taker
    ) -> int | None:
        """The guard for a batch that was sent to `at` and is appended to another log, in another name."""
        if not header.is_transactional or transactional_id is None:
            return None
        if taker.producers.has_open(taker.producer_id, header.producer_epoch):
            return None
        guard = taker.producers.guard(taker.producer_id)
        producer = header.producer_id, header.producer_epoch
        code = (await self._ask(version, transactional_id, producer, [at]))[at]
        if code is not Code.NONE:
            raise _not_in(at, transactional_id, code, version)
        if guard != taker.producers.guard(taker.producer_id):
            raise _ended_meanwhile(at, transactional_id, version)
        return guard

    async def _ask(
        self, version: int, transactional_id: str, producer: tuple[int, int], places: list[TopicPartition]
    ) -> dict[TopicPartition, Code]:
        from penstock.transactions.state_machine import BUMPING_VERSION, Producer

        try:
            return await self._transactions.join(
                transactional_id, Producer(*producer), places, version=BUMPING_VERSION, adds=version >= _ADDING_FROM
            )
        except ApiError as error:
            return dict.fromkeys(places, error.code)


def _not_in(at: TopicPartition, transactional_id: str, code: Code, version: int) -> ApiError:
    return ApiError(_spoken(code, version), f"{at} is not in the transaction {transactional_id}")


def _ended_meanwhile(at: TopicPartition, transactional_id: str, version: int) -> ApiError:
    """While the coordinator was asked, the marker of the transaction before arrived, or once more: a coordinator that
    takes over writes the markers again, when the producer may have been told already that they are written.
    """
    return _not_in(at, transactional_id, Code.CONCURRENT_TRANSACTIONS, version)


def _spoken(code: Code, version: int) -> Code:
    """The code in words that producers of this version understand."""
    if code is Code.PRODUCER_FENCED:
        return Code.INVALID_PRODUCER_EPOCH
    if code is Code.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        return Code.INVALID_TXN_STATE
    if code in _COORDINATOR_IS_AWAY or (code is Code.CONCURRENT_TRANSACTIONS and version < _ADDING_FROM):
        return Code.NOT_ENOUGH_REPLICAS  # what makes a producer try again
    return code
