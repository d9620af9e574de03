"""Commits without metadata, kept as the bytes of their records.

Consumers commit the same partitions again and again. What such commits have in common is a `CommitShape`, which is made
once: the partitions, and all of their records but what changes. What changes, offset and leader epoch, has the same
bytes in the request and in the record, so a commit is written, and taken into the state, without an object for each of
its partitions. Those are made when the offsets are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

from penstock.errors import Code
from penstock.groups.offsets import Committed
from penstock.ids import TopicPartition

_POSITION = struct.Struct(">qi")


class CommitShape:
    """The partitions of one group that are committed together, in the order of the request. It is its own key."""

    __slots__ = ("accepted", "group_id", "places", "record_heads")

    def __init__(self, group_id: str, places: Sequence[TopicPartition], record_heads: Sequence[bytes]) -> None:
        """`record_heads`: of each record what stands before its offset, see `records.commit_heads`."""
        self.group_id = group_id
        self.places = tuple(places)
        self.record_heads = tuple(record_heads)
        self.accepted: Mapping[TopicPartition, Code] = dict.fromkeys(self.places, Code.NONE)
        """The answer for each partition if all are accepted."""


class Commit(Mapping[TopicPartition, Committed]):
    """One commit of the partitions of a shape: what is committed for each, decoded on access."""

    __slots__ = ("_offsets", "committed_ms", "positions", "shape")

    def __init__(self, shape: CommitShape, positions: Sequence[bytes], committed_ms: int) -> None:
        """`positions`: offset and leader epoch of each partition, 12 bytes."""
        self.shape = shape
        self.positions = positions
        self.committed_ms = committed_ms
        self._offsets: dict[TopicPartition, Committed] | None = None

    @property
    def group_id(self) -> str:
        return self.shape.group_id

    @property
    def offsets(self) -> dict[TopicPartition, Committed]:
        if self._offsets is None:
            now_ms = self.committed_ms
            found = _POSITION.iter_unpack(b"".join(self.positions))
            self._offsets = {
                at: Committed(offset, epoch, "", now_ms)
                for at, (offset, epoch) in zip(self.shape.places, found, strict=True)
            }
        return self._offsets

    def __getitem__(self, at: TopicPartition) -> Committed:
        return self.offsets[at]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self.shape.places)

    def __len__(self) -> int:
        return len(self.shape.places)
