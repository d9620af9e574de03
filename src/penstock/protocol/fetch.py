"""Fetch (1), versions 4 to 16, coded by hand because every record that leaves the broker passes here.

Request, and response below it. From version 12 on, lengths marked `c` are varints plus one, and `T` are
tagged fields; from version 13 on, a topic is its 16-byte id instead of its name.

    replica_id i32 (to 14) | max_wait_ms i32 | min_bytes i32 | max_bytes i32 | isolation_level i8
        | session_id i32 (7+) | session_epoch i32 (7+)
        | topics c [ topic | partitions c [ index i32 | current_leader_epoch i32 (9+) | fetch_offset i64
            | last_fetched_epoch i32 (12+) | log_start_offset i64 (5+) | max_bytes i32 | T ] | T ]
        | forgotten c [ topic | partitions c [ i32 ] | T ] (7+) | rack_id c (11+) | T: 1 = replica state (15+)

    throttle_time_ms i32 | error_code i16 (7+) | session_id i32 (7+)
        | topics c [ topic | partitions c [ index i32 | error_code i16
            | high_watermark i64 | last_stable_offset i64 | log_start_offset i64 (5+)
            | aborted c? [ producer_id i64 | first_offset i64 | T ]
            | preferred_read_replica i32 (11+) | records c? | T: 0 = diverging epoch (12+) ] | T ] | T

Rules: the records of a response are parts that the network writes as they are, never joined or copied here; a
hostile request ends in `ProtocolError`, and each turn of a loop eats bytes. Entries are counted before they are made;
a topic and its first partition count as one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.parts import Part
from penstock.protocol.decoding import NO_LIMIT
from penstock.protocol.steps import ENTRIES_A_STEP, Steps, run
from penstock.protocol.varint import MAX_TAGS, continue_uvarint, read_uvarint, skip_tag_section, uvarint

FLEXIBLE_FROM = 12
TOPIC_ID_FROM = 13

_LOG_START_OFFSET_FROM = 5
_SESSION_FROM = 7
_CURRENT_LEADER_EPOCH_FROM = 9
_RACK_FROM = 11
_REPLICA_STATE_FROM = 15
_REPLICA_STATE_TAG = 1
_STEP_MASK = ENTRIES_A_STEP - 1

_i16 = struct.Struct(">h")
_i32 = struct.Struct(">i")
# The last byte begins the count of topics.
_head_v15 = struct.Struct(">iiibiiB").unpack_from
_session_and_varint = struct.Struct(">iiB").unpack_from
_topic_id_and_varint = struct.Struct(">16sB").unpack_from
# No forgotten topics, no rack, no tags: how almost every request ends.
_NOTHING_MORE = b"\x01\x01\0"
_replica_and_limits = struct.Struct(">iiiib").unpack_from
_session = struct.Struct(">ii").unpack_from
# The last byte is the count of tagged fields.
_partition_v12 = struct.Struct(">iiqiqiB").unpack_from
_partition_v9 = struct.Struct(">iiqqi").unpack_from
_partition_v5 = struct.Struct(">iqqi").unpack_from
_partition_v4 = struct.Struct(">iqi").unpack_from

_result_v4 = struct.Struct(">ihqq").pack
_result_v5 = struct.Struct(">ihqqq").pack
# With a null (0) or empty (1) list of aborted transactions and the preferred replica.
_result_v12 = struct.Struct(">ihqqqBi").pack
_aborted_v4 = struct.Struct(">qq").pack
_aborted_v12 = struct.Struct(">qqx").pack
# One tagged field: its number and its size, then epoch, end offset and no tags.
_diverging = struct.Struct(">BBBiqx").pack
_DIVERGING_HEAD = (1, 0, 13)
_response_v4 = struct.Struct(">ii").pack
_response_v7 = struct.Struct(">iihi").pack
_response_v12 = struct.Struct(">ixihi").pack


Forgotten = tuple[str | None, bytes | None, int]


class FetchPartition(NamedTuple):
    """Where to read in one partition; either `topic` or `topic_id`, 16 raw bytes, is set."""

    topic: str | None
    topic_id: bytes | None
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


@dataclass(slots=True)
class FetchRequest:
    """`forgotten` are (topic, topic_id, index) of partitions that leave the fetch session."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[Forgotten]
    rack_id: str


class FetchResult(NamedTuple):
    """What was read of one partition.

    `parts` are passed through in order and are `size` bytes together; `aborted` are
    (producer id, first offset) pairs, or None for a reader that does not care about transactions. `diverging` tells a
    follower that its log has parted from this one: (epoch, end offset) where the two may still agree.
    """

    topic: str | None
    topic_id: bytes | None
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    parts: Sequence[Part] = ()
    size: int = 0
    diverging: tuple[int, int] | None = None


def decode_request(version: int, body: memoryview, position: int, max_entries: int = NO_LIMIT) -> FetchRequest:
    return run(decode_in_steps(version, body, position, max_entries))


def decode_in_steps(version: int, body: memoryview, position: int, max_entries: int) -> Steps[FetchRequest]:
    """The request, with a pause now and then."""
    try:
        if version >= FLEXIBLE_FROM:
            return (yield from _decode_flexible(version, body, position, max_entries))
        return (yield from _decode_plain(version, body, position, max_entries))
    except (struct.error, IndexError):
        raise ProtocolError(f"FetchRequest v{version} ends too early") from None
    except UnicodeDecodeError:
        raise ProtocolError(f"FetchRequest v{version} holds a string that is not UTF-8") from None


def _decode_flexible(version: int, body: memoryview, position: int, left: int) -> Steps[FetchRequest]:
    replica_id = -1
    if version >= _REPLICA_STATE_FROM:
        wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, topics = _head_v15(body, position)
        position += 22
    else:
        replica_id, wait_ms, min_bytes, max_bytes, isolation = _replica_and_limits(body, position)
        session_id, epoch, topics = _session_and_varint(body, position + 17)
        position += 26
    if topics > 127:
        topics, position = continue_uvarint(body, position, topics)
    if not topics:
        raise _refuse("topics")
    partitions: list[FetchPartition] = []
    add = partitions.append
    topic_id: bytes | None = None
    topic: str | None = None
    for _ in range(topics - 1):
        if version >= TOPIC_ID_FROM:
            topic_id, count = _topic_id_and_varint(body, position)
            position += 17
            if count > 127:
                count, position = continue_uvarint(body, position, count)
        else:
            topic, position = _compact_string(body, position, "topic")
            count, position = read_uvarint(body, position)
        if not count:
            raise _refuse("partitions")
        left -= max(1, count - 1)
        if left < 0:
            raise _too_many()
        for made in range(1, count):
            index, leader_epoch, offset, last_epoch, log_start, limit, tags = _partition_v12(body, position)
            add(FetchPartition(topic, topic_id, index, leader_epoch, offset, last_epoch, log_start, limit))
            if tags:
                left -= tags
                if left < 0:
                    raise _too_many()
                position = skip_tag_section(body, position + 32)
            else:
                position += 33
            if not made & _STEP_MASK:
                yield
        if not left & _STEP_MASK:
            yield
        left -= body[position]
        position = skip_tag_section(body, position) if body[position] else position + 1
    forgotten: list[Forgotten] = []
    rack = ""
    if body[position:] != _NOTHING_MORE:
        forgotten, position = yield from _flexible_forgotten(version, body, position, left)
        rack, position = _compact_string(body, position, "rack_id")
        replica_id = _tagged_replica_id(version, body, position, replica_id)
    return FetchRequest(
        replica_id, wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, partitions, forgotten, rack
    )


def _flexible_forgotten(version: int, body: memoryview, position: int, left: int) -> Steps[tuple[list[Forgotten], int]]:
    forgotten: list[Forgotten] = []
    topics, position = read_uvarint(body, position)
    if not topics:
        raise _refuse("forgotten_topics_data")
    topic_id: bytes | None = None
    topic: str | None = None
    for _ in range(topics - 1):
        if version >= TOPIC_ID_FROM:
            topic_id = bytes(body[position : position + 16])
            position += 16
        else:
            topic, position = _compact_string(body, position, "topic")
        count, position = read_uvarint(body, position)
        if not count:
            raise _refuse("partitions")
        left -= max(1, count - 1)
        if left < 0:
            raise _too_many()
        for made in range(1, count):
            forgotten.append((topic, topic_id, _i32.unpack_from(body, position)[0]))
            position += 4
            if not made & _STEP_MASK:
                yield
        if not left & _STEP_MASK:
            yield
        left -= body[position]
        position = skip_tag_section(body, position)
    return forgotten, position


def _tagged_replica_id(version: int, body: memoryview, position: int, replica_id: int) -> int:
    count, position = read_uvarint(body, position)
    if count > MAX_TAGS:
        raise _refuse("tagged fields")
    for _ in range(count):
        tag, position = read_uvarint(body, position)
        size, position = read_uvarint(body, position)
        if position + size > len(body):
            raise _refuse("tagged field")
        if tag == _REPLICA_STATE_TAG and version >= _REPLICA_STATE_FROM:
            (replica_id,) = _i32.unpack_from(body[position : position + size])
        position += size
    return replica_id


def _decode_plain(version: int, body: memoryview, position: int, left: int) -> Steps[FetchRequest]:
    replica_id, wait_ms, min_bytes, max_bytes, isolation = _replica_and_limits(body, position)
    position += 17
    session_id, epoch = 0, -1
    if version >= _SESSION_FROM:
        session_id, epoch = _session(body, position)
        position += 8
    topics, position = _count(body, position, "topics")
    partitions: list[FetchPartition] = []
    add = partitions.append
    for _ in range(topics):
        topic, position = _string(body, position, "topic")
        count, position = _count(body, position, "partitions")
        leader_epoch = log_start = -1
        left -= max(1, count)
        if left < 0:
            raise _too_many()
        if not left & _STEP_MASK:
            yield
        for made in range(count):
            if made & _STEP_MASK == _STEP_MASK:
                yield
            if version >= _CURRENT_LEADER_EPOCH_FROM:
                index, leader_epoch, offset, log_start, limit = _partition_v9(body, position)
                position += 28
            elif version >= _LOG_START_OFFSET_FROM:
                index, offset, log_start, limit = _partition_v5(body, position)
                position += 24
            else:
                index, offset, limit = _partition_v4(body, position)
                position += 16
            add(FetchPartition(topic, None, index, leader_epoch, offset, -1, log_start, limit))
    forgotten: list[Forgotten] = []
    if version >= _SESSION_FROM:
        topics, position = _count(body, position, "forgotten_topics_data")
        for _ in range(topics):
            topic, position = _string(body, position, "topic")
            count, position = _count(body, position, "partitions")
            left -= max(1, count)
            if left < 0:
                raise _too_many()
            for _ in range(count):
                forgotten.append((topic, None, _i32.unpack_from(body, position)[0]))
                position += 4
    rack = _string(body, position, "rack_id")[0] if version >= _RACK_FROM else ""
    return FetchRequest(
        replica_id, wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, partitions, forgotten, rack
    )


def _compact_string(body: memoryview, position: int, field: str) -> tuple[str, int]:
    size, position = read_uvarint(body, position)
    stop = position + size - 1
    if not size or stop > len(body):
        raise _refuse(field)
    return str(body[position:stop], "utf-8"), stop


def _string(body: memoryview, position: int, field: str) -> tuple[str, int]:
    (size,) = _i16.unpack_from(body, position)
    position += 2
    stop = position + size
    if size < 0 or stop > len(body):
        raise _refuse(field)
    return str(body[position:stop], "utf-8"), stop


def _count(body: memoryview, position: int, field: str) -> tuple[int, int]:
    (count,) = _i32.unpack_from(body, position)
    if count < 0:
        raise _refuse(field)
    return count, position + 4


def _too_many() -> ProtocolError:
    return ProtocolError("a fetch of too many partitions (limits.request_entries)")


def _refuse(field: str) -> ProtocolError:
    return ProtocolError(f"FetchRequest.{field} has a length that cannot be")


def encode_response(
    version: int,
    correlation_id: int,
    results: Sequence[FetchResult],
    *,
    throttle_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
) -> list[Part]:
    """The whole frame in wire order: the bytes around the records, and between them the results' own parts.

    Consecutive results of one topic share its entry. A result without parts has empty records, not null ones.
    """
    return run(
        encode_in_steps(
            version,
            correlation_id,
            results,
            throttle_ms=throttle_ms,
            error_code=error_code,
            session_id=session_id,
        )
    )


def encode_in_steps(
    version: int,
    correlation_id: int,
    results: Sequence[FetchResult],
    *,
    throttle_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
) -> Steps[list[Part]]:
    """The same, with a pause now and then."""
    if version >= FLEXIBLE_FROM:
        head = _response_v12(correlation_id, throttle_ms, error_code, session_id)
        return (yield from _encode_flexible(version, head, results))
    if version >= _SESSION_FROM:
        head = _response_v7(correlation_id, throttle_ms, error_code, session_id)
    else:
        head = _response_v4(correlation_id, throttle_ms)
    return (yield from _encode_plain(version, head, results))


def _encode_flexible(version: int, head: bytes, results: Sequence[FetchResult]) -> Steps[list[Part]]:
    topics = _by_topic(results)
    frame: list[Part] = []
    pending = [head, uvarint(len(topics) + 1)]
    total = written = 0
    for members in topics:
        pending.append(_topic_v12(version, members[0]))
        pending.append(uvarint(len(members) + 1))
        for _, _, index, code, high, stable, start, aborted, preferred, parts, size, diverging in members:
            written += 1
            if not written & _STEP_MASK:
                yield
            if aborted:
                pending.append(_result_v5(index, code, high, stable, start))
                pending.append(uvarint(len(aborted) + 1))
                pending += [_aborted_v12(*transaction) for transaction in aborted]
                pending.append(_i32.pack(preferred))
            else:
                pending.append(_result_v12(index, code, high, stable, start, aborted is not None, preferred))
            pending.append(uvarint(size + 1))
            if size:
                chunk = b"".join(pending)
                frame.append(chunk)
                frame += parts
                total += len(chunk) + size
                pending = []
            pending.append(b"\0" if diverging is None else _diverging(*_DIVERGING_HEAD, *diverging))
        pending.append(b"\0")
    pending.append(b"\0")
    return _with_size(frame, b"".join(pending), total)


def _encode_plain(version: int, head: bytes, results: Sequence[FetchResult]) -> Steps[list[Part]]:
    topics = _by_topic(results)
    frame: list[Part] = []
    pending = [head, _i32.pack(len(topics))]
    total = written = 0
    for members in topics:
        name = _name(members[0])
        pending += (_i16.pack(len(name)), name, _i32.pack(len(members)))
        for _, _, index, code, high, stable, start, aborted, preferred, parts, size, _ in members:
            written += 1
            if not written & _STEP_MASK:
                yield
            if version >= _LOG_START_OFFSET_FROM:
                pending.append(_result_v5(index, code, high, stable, start))
            else:
                pending.append(_result_v4(index, code, high, stable))
            pending.append(_i32.pack(-1 if aborted is None else len(aborted)))
            pending += [_aborted_v4(*transaction) for transaction in aborted or ()]
            if version >= _RACK_FROM:
                pending.append(_i32.pack(preferred))
            pending.append(_i32.pack(size))
            if size:
                chunk = b"".join(pending)
                frame.append(chunk)
                frame += parts
                total += len(chunk) + size
                pending = []
    return _with_size(frame, b"".join(pending), total)


def _with_size(frame: list[Part], tail: bytes, total: int) -> list[Part]:
    """Ends the frame with `tail` and begins it with its size; `total` is the size so far."""
    if tail:
        frame.append(tail)
    first = frame[0]
    assert isinstance(first, bytes)
    frame[0] = _i32.pack(total + len(tail)) + first
    return frame


def _by_topic(results: Sequence[FetchResult]) -> list[list[FetchResult]]:
    grouped: list[list[FetchResult]] = []
    topic: str | None = None
    topic_id: bytes | None = None
    for result in results:
        if grouped and result.topic == topic and result.topic_id == topic_id:
            grouped[-1].append(result)
        else:
            topic, topic_id = result.topic, result.topic_id
            grouped.append([result])
    return grouped


def _topic_v12(version: int, result: FetchResult) -> bytes:
    if version < TOPIC_ID_FROM:
        name = _name(result)
        return uvarint(len(name) + 1) + name
    if result.topic_id is None or len(result.topic_id) != 16:
        raise ValueError("this version of Fetch names topics by id")
    return result.topic_id


def _name(result: FetchResult) -> bytes:
    if result.topic is None:
        raise ValueError("this version of Fetch names topics by name")
    return result.topic.encode()
