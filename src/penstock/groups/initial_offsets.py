"""Initial offsets of a group with the setting penstock.offset.initial: committed when it first fetches its offsets."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.config.group import EARLIEST
from penstock.errors import ApiError
from penstock.groups.offsets import Committed
from penstock.ids import TopicPartition
from penstock.replication.replicas import Replicas


def initial_offsets(
    replicas: Replicas, policy: str, places: Iterable[TopicPartition], now_ms: int
) -> dict[TopicPartition, Committed]:
    """The first offset or the end of each partition that this broker leads."""
    offsets = {}
    for at in places:
        try:
            partition = replicas.find(at.topic, at.partition)
        except ApiError:
            continue  # the client gets the error when it fetches
        offset = partition.log.start_offset if policy == EARLIEST else partition.high_watermark
        offsets[at] = Committed(offset, -1, "", now_ms)
    return offsets
