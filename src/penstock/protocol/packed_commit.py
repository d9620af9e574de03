"""A request for OffsetCommit whose partitions stay the bytes that came.

Nearly every commit has no metadata. Then each partition takes the same number of bytes, and a commit of a hundred
partitions is taken apart by a few slices instead of an object for each:

    i32  partition index            ^
    i64  offset                     |  18 bytes; offset and leader epoch stand together
    i32  leader epoch               |  in the record of the commit as well
    u8   metadata: 0 null, 1 empty  |
    u8   tagged fields: 0           v

Whatever is different (metadata, tagged fields, an older version, a request that is cut short) is left to the decoder
that is made of the message's description.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

from penstock.errors import ProtocolError
from penstock.ids import NO_TOPIC_ID
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.varint import read_uvarint

_FLEXIBLE_FROM = 8
_TOPIC_IDS_FROM = 10
_UUID_BYTES = 16

_ENTRY = struct.Struct(">iqixx")
_ENTRY_BYTES = _ENTRY.size
_METADATA_AT, _TAGS_AT = 16, 17
_NO_METADATA = b"\0\1"
_EPOCH = struct.Struct(">i").unpack_from
_LAYOUTS_KEPT = 512


class PackedTopic(OffsetCommitRequestTopic):
    """A topic of a commit without metadata; its partitions become objects only on access."""

    __slots__ = ("_described", "entries", "key")

    def __init__(self, key: bytes, name: str, entries: bytes) -> None:
        self.key = key
        """Its name or its id, as it came."""
        object.__setattr__(self, "name", name)
        self.entries = entries
        self._described: tuple[OffsetCommitRequestPartition, ...] | None = None

    def __len__(self) -> int:
        """How many partitions it has."""
        return len(self.entries) // _ENTRY_BYTES

    @property
    def topic_id(self) -> UUID:
        return NO_TOPIC_ID if self.name else UUID(bytes=self.key)

    @property
    def partitions(self) -> tuple[OffsetCommitRequestPartition, ...]:
        if self._described is None:
            self._described = tuple(
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_leader_epoch=epoch, committed_metadata=""
                )
                for index, offset, epoch in _ENTRY.iter_unpack(self.entries)
            )
        return self._described

    @property
    def places(self) -> bytes:
        """The same bytes for the same partitions in the same order, whatever is committed."""
        entries = self.entries
        return b"".join([entries[at::_ENTRY_BYTES] for at in range(4)])

    @property
    def positions(self) -> tuple[bytes, ...]:
        """Offset and leader epoch of each partition, as they came."""
        return _positions_of(len(self))(self.entries)


@lru_cache(_LAYOUTS_KEPT)
def _positions_of(count: int) -> Callable[[bytes], tuple[bytes, ...]]:
    return struct.Struct("4x12s2x" * count).unpack


def decode(version: int, data: memoryview, position: int, max_entries: int) -> OffsetCommitRequest | None:
    """The request that starts at `position`; None if it is not one of this kind."""
    if version < _FLEXIBLE_FROM:
        return None
    try:
        return _decode(version, data, position, max_entries)
    except (struct.error, IndexError, ValueError, ProtocolError):
        return None


def _decode(version: int, data: memoryview, pos: int, max_entries: int) -> OffsetCommitRequest | None:
    group_id, pos = _text(data, pos)
    (epoch,) = _EPOCH(data, pos)
    member_id, pos = _text(data, pos + 4)
    instance_id, pos = (None, pos + 1) if not data[pos] else _text(data, pos)
    count, pos = _count(data, pos)
    topics = []
    left = max_entries - count
    for _ in range(count):
        if version >= _TOPIC_IDS_FROM:
            name, key = "", bytes(data[pos : pos + _UUID_BYTES])
            pos += _UUID_BYTES
        else:
            name, stop = _text(data, pos)
            key, pos = bytes(data[pos:stop]), stop
        partitions, pos = _count(data, pos)
        left -= partitions
        stop = pos + partitions * _ENTRY_BYTES
        if left < 0 or stop >= len(data):
            return None
        entries = bytes(data[pos:stop])
        if entries[_METADATA_AT::_ENTRY_BYTES].strip(_NO_METADATA) or entries[_TAGS_AT::_ENTRY_BYTES].strip(b"\0"):
            return None
        if data[stop] or (not name and version < _TOPIC_IDS_FROM):
            return None
        topics.append(PackedTopic(key, name, entries))
        pos = stop + 1
    if data[pos]:
        return None
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=tuple(topics),
    )


def _text(data: memoryview, pos: int) -> tuple[str, int]:
    """A string that is not null, and the position after it."""
    size, pos = _count(data, pos)
    stop = pos + size
    if stop > len(data):
        raise ValueError("a string that is cut short")
    return str(data[pos:stop], "utf-8"), stop


def _count(data: memoryview, pos: int) -> tuple[int, int]:
    size, pos = (data[pos], pos + 1) if data[pos] < 0x80 else read_uvarint(data, pos)
    if not size:
        raise ValueError("null where there must be something")
    return size - 1, pos
