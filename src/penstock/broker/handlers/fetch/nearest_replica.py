"""Which replica a client should read from (KIP-392)."""

from __future__ import annotations

from penstock.broker.handlers.fetch.partition_reads import NO_REPLICA
from penstock.cluster.metadata import MetadataImage
from penstock.replication.partition import Partition


def nearest_replica(image: MetadataImage, partition: Partition, rack: str, listener: str) -> int:
    """A replica in sync in the client's rack that has its listener, unless the leader is in that rack."""
    brokers, leadership = image.brokers, partition.leadership
    if leadership is None or brokers[leadership.me].rack == rack:
        return NO_REPLICA
    near = [
        found
        for found in leadership.in_sync
        if found in image.alive and brokers[found].rack == rack and brokers[found].endpoint(listener) is not None
    ]
    return min(near, default=NO_REPLICA)
