"""Fetch (1) from the other side: what a follower asks its leader, and how it reads the answer. Version 16 only.

`protocol/fetch.py` draws the layout. A follower names itself with its broker epoch in the replica state (tag 1 of the
request), and learns where its log diverges from the leader's in tag 0 of a partition's answer. Records stay views into
the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.protocol.fetch import FetchPartition
from penstock.protocol.varint import read_uvarint, skip_tag_section, uvarint

VERSION = 16

_i32 = struct.Struct(">i")
_head = struct.Struct(">iiibii").pack
_partition = struct.Struct(">iiqiqi").pack
_replica_state = struct.Struct(">iqx").pack
_REPLICA_STATE_TAG = 1

_response_head = struct.Struct(">ihi").unpack_from
_result = struct.Struct(">ihqqq").unpack_from
_RESULT_BYTES = 30
_ABORTED_BYTES = 16
_PREFERRED_BYTES = 4
_diverging = struct.Struct(">iq").unpack_from
_DIVERGING_TAG = 0


class ReplicaResult(NamedTuple):
    """One partition's part of the answer."""

    topic_id: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    error_code: int
    high_watermark: int
    log_start_offset: int
    records: memoryview
    diverging: tuple[int, int] | None
    """(epoch, end offset) where the logs may still agree."""


def encode_request(
    replica_id: int,
    replica_epoch: int,
    partitions: Sequence[FetchPartition],
    *,
    forgotten: Sequence[tuple[bytes, int]] = (),
    session_id: int,
    session_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    rack: str = "",
) -> bytes:
    """The body of a request; partitions of a topic stand together, in both lists. With a rack, and without a replica's
    id, it may be sent to a follower too (KIP-392).
    """
    topics = [(topic_id, list(members)) for topic_id, members in groupby(partitions, lambda wanted: wanted.topic_id)]
    parts = [_head(max_wait_ms, min_bytes, max_bytes, 0, session_id, session_epoch), uvarint(len(topics) + 1)]
    for topic_id, members in topics:
        parts += (topic_id or bytes(16), uvarint(len(members) + 1))
        for wanted in members:
            parts.append(
                _partition(
                    wanted.index,
                    wanted.current_leader_epoch,
                    wanted.fetch_offset,
                    wanted.last_fetched_epoch,
                    wanted.log_start_offset,
                    wanted.max_bytes,
                )
            )
            parts.append(b"\0")
        parts.append(b"\0")
    gone = [(topic_id, [index for _, index in members]) for topic_id, members in groupby(forgotten, itemgetter(0))]
    parts.append(uvarint(len(gone) + 1))
    for topic_id, indexes in gone:
        parts += (topic_id, uvarint(len(indexes) + 1), *map(_i32.pack, indexes), b"\0")
    state = _replica_state(replica_id, replica_epoch)
    name = rack.encode()
    parts += (uvarint(len(name) + 1), name, uvarint(1), uvarint(_REPLICA_STATE_TAG), uvarint(len(state)), state)
    return b"".join(parts)


def decode_response(body: memoryview) -> tuple[int, int, list[ReplicaResult]]:
    """The error of the whole answer, its session id, and every partition's part."""
    try:
        _, code, session_id = _response_head(body)
        return code, session_id, _results(body, 10)
    except (struct.error, IndexError):
        raise ProtocolError("FetchResponse ends too early") from None


def _results(body: memoryview, position: int) -> list[ReplicaResult]:
    results: list[ReplicaResult] = []
    topics, position = _count(body, position)
    for _ in range(topics):
        topic_id = bytes(body[position : position + 16])
        members, position = _count(body, position + 16)
        for _ in range(members):
            index, code, high_watermark, _, start = _result(body, position)
            aborted, position = _count(body, position + _RESULT_BYTES)
            for _ in range(aborted):
                position = skip_tag_section(body, position + _ABORTED_BYTES)
            position += _PREFERRED_BYTES
            size, position = _count(body, position)
            records = body[position : position + size]
            if len(records) != size:
                raise ProtocolError("FetchResponse ends within its records")
            diverging, position = _partition_tags(body, position + size)
            results.append(ReplicaResult(topic_id, index, code, high_watermark, start, records, diverging))
        position = skip_tag_section(body, position)
    skip_tag_section(body, position)
    return results


def _count(body: memoryview, position: int) -> tuple[int, int]:
    """A length plus one; null counts as nothing."""
    count, position = read_uvarint(body, position)
    return max(0, count - 1), position


def _partition_tags(body: memoryview, position: int) -> tuple[tuple[int, int] | None, int]:
    found: tuple[int, int] | None = None
    tags, position = read_uvarint(body, position)
    for _ in range(tags):
        tag, position = read_uvarint(body, position)
        size, position = read_uvarint(body, position)
        field = body[position : position + size]
        if len(field) != size:
            raise ProtocolError("FetchResponse ends within a tagged field")
        if tag == _DIVERGING_TAG:
            found = _diverging(field)
        position += size
    return found, position
