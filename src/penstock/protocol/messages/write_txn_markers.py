"""WriteTxnMarkers (27): a coordinator has the end of a transaction written to the logs it touched (KIP-98)."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, i64, message, since, struct


@struct
class WritableTxnMarkerTopic:
    name: str
    partition_indexes: tuple[i32, ...]


@struct
class WritableTxnMarker:
    """`transaction_result` is true for a commit."""

    producer_id: i64
    producer_epoch: i16
    transaction_result: bool
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: i32
    transaction_version: i8 = since(2, default=0)


@message(flexible_from=1)
class WriteTxnMarkersRequest:
    markers: tuple[WritableTxnMarker, ...]


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: i32
    error_code: i16 = 0


@struct
class WritableTxnMarkerTopicResult:
    name: str
    partitions: tuple[WritableTxnMarkerPartitionResult, ...]


@struct
class WritableTxnMarkerResult:
    producer_id: i64
    topics: tuple[WritableTxnMarkerTopicResult, ...]


@message(flexible_from=1)
class WriteTxnMarkersResponse:
    markers: tuple[WritableTxnMarkerResult, ...]
