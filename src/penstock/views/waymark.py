"""The batch that says: up to here there is nothing for you.

A consumer goes on behind the last batch it is given. Where a view shows nothing for a long stretch it would ask for
the same stretch again and again, and its committed offset would stay before it. So it is given a control batch, which
no client shows to its application: a marker of a commit, in no transaction and of no producer, at the last offset of
the stretch. A batch without records would do for most clients, but librdkafka takes an answer without any record for
one that was cut short, and doubles the size that it asks for (`docs/internals/views.md`).
"""

from __future__ import annotations

from penstock.protocol.messages.transaction_records import (
    COMMIT,
    CONTROL_RECORD_KEY,
    END_TXN_MARKER,
    ControlRecordKey,
    EndTxnMarker,
)
from penstock.records.batch import CONTROL_BIT, NO_TIMESTAMP
from penstock.records.records import Record, build_batch


def waymark(offset: int, leader_epoch: int) -> bytes:
    """The batch that makes a consumer go on behind `offset`."""
    key = CONTROL_RECORD_KEY.encode(ControlRecordKey(type=COMMIT))
    value = END_TXN_MARKER.encode(EndTxnMarker(coordinator_epoch=0))
    batch = build_batch(
        [Record(key, value, (), NO_TIMESTAMP)],
        base_offset=offset,
        leader_epoch=leader_epoch,
        attributes=CONTROL_BIT,
    )
    return bytes(batch)
