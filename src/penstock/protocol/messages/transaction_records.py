"""The records of `__transaction_state`, and the marker that ends a transaction in the logs it touched (KIP-98)."""

from __future__ import annotations

from penstock.protocol.schema import NEVER, i8, i16, i32, i64, message, struct, tagged
from penstock.protocol.versioned import Versioned

# The states of a transaction, as `transaction_status` numbers them.
EMPTY = 0
ONGOING = 1
PREPARE_COMMIT = 2
PREPARE_ABORT = 3
COMPLETE_COMMIT = 4
COMPLETE_ABORT = 5
DEAD = 6
PREPARE_EPOCH_FENCE = 7


@message(flexible_from=NEVER)
class TransactionLogKey:
    transactional_id: str


@struct
class PartitionsSchema:
    topic: str
    partition_ids: tuple[i32, ...]


@message(flexible_from=1)
class TransactionLogValue:
    producer_id: i64
    previous_producer_id: i64 = tagged(0, since=1, default=-1)
    next_producer_id: i64 = tagged(1, since=1, default=-1)
    producer_epoch: i16
    transaction_timeout_ms: i32
    transaction_status: i8
    transaction_partitions: tuple[PartitionsSchema, ...] | None = None
    transaction_last_update_timestamp_ms: i64
    transaction_start_timestamp_ms: i64
    client_transaction_version: i16 = tagged(2, since=1, default=0)


# The kinds of control record that end a transaction.
ABORT = 0
COMMIT = 1


@message(flexible_from=NEVER)
class ControlRecordKey:
    type: i16


@message(flexible_from=NEVER)
class EndTxnMarker:
    coordinator_epoch: i32


TRANSACTION_LOG_KEY = Versioned(TransactionLogKey, oldest=0, newest=0, written=0)
TRANSACTION_LOG_VALUE = Versioned(TransactionLogValue, oldest=0, newest=1, written=1)
CONTROL_RECORD_KEY = Versioned(ControlRecordKey, oldest=0, newest=0, written=0, grows=True)
END_TXN_MARKER = Versioned(EndTxnMarker, oldest=0, newest=0, written=0, grows=True)
