"""Where the marker is written that ends a transaction in a partition of this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.metadata import MetadataImage
from penstock.cluster.retiring import successor_of_gone
from penstock.ids import TopicPartition, stand_in_id
from penstock.replication.replicas import Replicas

if TYPE_CHECKING:
    from penstock.replication.marker import Marker


async def write_marker(replicas: Replicas, image: MetadataImage, at: TopicPartition, marker: Marker) -> None:
    """Ends a transaction in the log of a partition and, if it is retired, in that of its successor.

    The latter in any case: a batch may be on its way there, and the marker makes its guard void.
    """
    successor = successor_of_gone(image, at)
    if successor is None:
        partition = replicas.find(at.topic, at.partition)
        successor = partition.log.successor
        if successor is None or partition.log.producers.is_open(marker.producer_id):
            await marker.write_to(partition)
    if successor is not None:
        stand_in = marker._replace(producer_id=stand_in_id(marker.producer_id, at.partition))
        await stand_in.write_to(replicas.find(at.topic, successor))
