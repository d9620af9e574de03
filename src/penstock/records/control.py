"""Control batches: the markers that end a transaction in a log it touched (KIP-98).

A marker is a batch of one record with the control and the transactional bit set. The record's key says whether the
transaction was committed or aborted, its value which coordinator decided that.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import ApiError, ProtocolError
from penstock.protocol.messages.transaction_records import (
    ABORT,
    COMMIT,
    CONTROL_RECORD_KEY,
    END_TXN_MARKER,
    ControlRecordKey,
    EndTxnMarker,
)
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from penstock.records.records import Record, build_batch, records_block, walk


class Marker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that ended it."""

    committed: bool
    coordinator_epoch: int


def build_marker(producer_id: int, producer_epoch: int, marker: Marker, now_ms: int) -> bytearray:
    """The control batch that ends the producer's transaction."""
    key = CONTROL_RECORD_KEY.encode(ControlRecordKey(type=COMMIT if marker.committed else ABORT))
    value = END_TXN_MARKER.encode(EndTxnMarker(coordinator_epoch=marker.coordinator_epoch))
    return build_batch(
        [Record(key, value, (), now_ms)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
    )


def read_marker(batch: memoryview, header: BatchHeader) -> Marker | None:
    """What a control batch says; None if it is one that ends no transaction."""
    try:
        record = next(walk(records_block(batch, header), header.record_count))
        if record.key is None or record.value is None:
            return None
        kind = CONTROL_RECORD_KEY.decode(record.key).type
        if kind not in (ABORT, COMMIT):
            return None
        return Marker(kind == COMMIT, END_TXN_MARKER.decode(record.value).coordinator_epoch)
    except (ApiError, ProtocolError, StopIteration):
        return None
