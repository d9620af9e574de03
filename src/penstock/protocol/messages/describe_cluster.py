"""DescribeCluster (60): the brokers, for administrators (KIP-700, KIP-919, KIP-1073)."""

from __future__ import annotations

from penstock.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from penstock.protocol.schema import i8, i16, i32, message, since, struct

BROKERS = 1
CONTROLLERS = 2


@message(flexible_from=0)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = False
    endpoint_type: i8 = since(1, default=BROKERS)
    include_fenced_brokers: bool = since(2, default=False)


@struct
class DescribeClusterBroker:
    broker_id: i32
    host: str
    port: i32
    rack: str | None = None
    is_fenced: bool = since(2, default=False)


@message(flexible_from=0)
class DescribeClusterResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    endpoint_type: i8 = since(1, default=BROKERS)
    cluster_id: str
    controller_id: i32 = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    cluster_authorized_operations: i32 = OPERATIONS_NOT_ASKED
