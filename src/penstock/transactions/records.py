"""States of transactional ids as records of the internal topic, in Kafka's format."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from penstock.errors import ProtocolError
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.protocol.messages.transaction_records import (
    TRANSACTION_LOG_KEY,
    TRANSACTION_LOG_VALUE,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from penstock.replication.state_log import StateRecord
from penstock.transactions.state import Status, TransactionRecord, TransactionState

logger = logging.getLogger(__name__)


def encode(record: TransactionRecord) -> StateRecord:
    key = TRANSACTION_LOG_KEY.encode(TransactionLogKey(transactional_id=record.transactional_id))
    return StateRecord(key, None if record.state is None else _value(record.state))


def decode(record: StateRecord) -> TransactionRecord | None:
    """The change in a record; None for an unknown one, which is left alone."""
    try:
        transactional_id = TRANSACTION_LOG_KEY.decode(record.key).transactional_id
        return TransactionRecord(transactional_id, None if record.value is None else _state(record.value))
    except (ProtocolError, ValueError) as error:
        logger.error("ignoring a record of __transaction_state that cannot be decoded", extra=fields(error=str(error)))
        return None


def name_of(key: bytes) -> str | None:
    """The transactional id in the key of a record; None if the key is unknown."""
    try:
        return TRANSACTION_LOG_KEY.decode(key).transactional_id
    except (ProtocolError, ValueError):
        return None


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    """The partitions of each topic, in order."""
    found: dict[str, list[int]] = {}
    for at in sorted(partitions):
        found.setdefault(at.topic, []).append(at.partition)
    return {topic: tuple(indexes) for topic, indexes in found.items()}


def _value(state: TransactionState) -> bytes:
    # Kafka writes null, not an empty list, where there is no transaction.
    partitions = tuple(
        PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in by_topic(state.partitions).items()
    )
    return TRANSACTION_LOG_VALUE.encode(
        TransactionLogValue(
            producer_id=state.producer_id,
            previous_producer_id=state.previous_producer_id,
            next_producer_id=state.next_producer_id,
            producer_epoch=state.producer_epoch,
            transaction_timeout_ms=state.timeout_ms,
            transaction_status=state.status,
            transaction_partitions=None if state.status is Status.EMPTY else partitions,
            transaction_last_update_timestamp_ms=state.changed_ms,
            transaction_start_timestamp_ms=state.started_ms,
            client_transaction_version=state.version,
        )
    )


def _state(data: bytes) -> TransactionState:
    value = TRANSACTION_LOG_VALUE.decode(data)
    return TransactionState(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        changed_ms=value.transaction_last_update_timestamp_ms,
        status=Status(value.transaction_status),
        partitions=frozenset(
            TopicPartition(found.topic, index)
            for found in value.transaction_partitions or ()
            for index in found.partition_ids
        ),
        started_ms=value.transaction_start_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        version=value.client_transaction_version,
    )
