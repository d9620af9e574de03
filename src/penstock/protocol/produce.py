"""Produce (0), versions 0 to 12, coded by hand because every record that enters the broker passes here.

Request, and response below it. From version 9 on, lengths marked `c` are varints plus one, and `T` are tagged
fields.

    transactional_id c? (3+) | acks i16 | timeout_ms i32
        | topics c [ name c | partitions c [ index i32 | records c? | T ] | T ] | T

    topics c [ name c | partitions c [ index i32 | error_code i16 | base_offset i64 | log_append_time_ms i64 (2+)
        | log_start_offset i64 (5+) | record_errors c [ batch_index i32 | message c? | T ] (8+)
        | error_message c? (8+) | T: 0 = current leader (10+) ] | T ] | throttle_time_ms i32 (1+)
        | T: 0 = where the leaders are (10+), c [ broker_id i32 | host c | port i32 | rack c? | T ]

Rules: records stay a view into the frame and are never copied or looked into; partitions come out flat, in
the order of the request; a hostile request ends in `ProtocolError`, and each turn of a loop eats bytes. Entries are
counted before they are made; a topic and its first partition count as one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.protocol.decoding import NO_LIMIT
from penstock.protocol.steps import ENTRIES_A_STEP, Steps, run
from penstock.protocol.varint import continue_uvarint, read_uvarint, skip_tag_section, skip_tags, uvarint

FLEXIBLE_FROM = 9

_THROTTLE_TIME_FROM = 1
_LOG_APPEND_TIME_FROM = 2
_TRANSACTIONAL_ID_FROM = 3
_LOG_START_OFFSET_FROM = 5
_RECORD_ERRORS_FROM = 8
_CURRENT_LEADER_FROM = 10

_i16 = struct.Struct(">h")
_i32 = struct.Struct(">i")
_acks_timeout_count = struct.Struct(">hii").unpack_from
_acks_timeout_varint = struct.Struct(">hiB").unpack_from
_index_size = struct.Struct(">ii").unpack_from
_index_varint = struct.Struct(">iB").unpack_from

_oldest_partition = struct.Struct(">ihq").pack
_plain_partition = struct.Struct(">ihqq").pack
_partition = struct.Struct(">ihqqq").pack
_PARTITION_BYTES = struct.calcsize(">ihqqq")
# No record errors, no message, no tags: what almost every partition of a flexible response is.
_good_partition = struct.Struct(">ihqqqBBx").pack
_correlation_id_no_tags = struct.Struct(">ix").pack
# A flexible response about one partition without details, up to the name of its topic and behind it: what clients get
# that send a batch as soon as they have it.
_one_head = struct.Struct(">iixBB").pack
_one_tail = struct.Struct(">BihqqqBBxxix").pack
_ONE_BYTES = struct.calcsize(">ixBB") + struct.calcsize(">BihqqqBBxxix")
_SHORT_NAME_BYTES = 126
"""Its length is one byte."""
_current_leader_tag = struct.Struct(">BBBiix").pack
_CURRENT_LEADER_SIZE = 9
_STEP_MASK = ENTRIES_A_STEP - 1

# A view costs 180 bytes however little it shows; a hostile request of nothing but empty ones shares this.
_EMPTY = memoryview(bytearray())


class ProducePartition(NamedTuple):
    """What a request appends to one partition; null records are a mistake that the handler answers."""

    topic: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    records: memoryview | None


@dataclass(slots=True)
class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]


class NodeEndpoint(NamedTuple):
    """Where a broker is found."""

    broker_id: int
    host: str
    port: int
    rack: str | None


_NO_DETAILS = (None, (), None)
"""How a result without message, record errors and leader ends."""


class ProduceResult(NamedTuple):
    """What became of one partition; `record_errors` are (index in the batch, message) pairs.

    `current_leader` is (broker id, leader epoch), for a producer that has asked the wrong broker (KIP-951).
    """

    topic: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()
    current_leader: tuple[int, int] | None = None


def decode_request(version: int, body: memoryview, position: int, max_entries: int = NO_LIMIT) -> ProduceRequest:
    try:
        if version >= FLEXIBLE_FROM:
            return _decode_flexible(body, position, max_entries)
        return _decode_plain(version, body, position, max_entries)
    except (struct.error, IndexError):
        raise ProtocolError(f"ProduceRequest v{version} ends too early") from None
    except UnicodeDecodeError:
        raise ProtocolError(f"ProduceRequest v{version} holds a string that is not UTF-8") from None


def _decode_flexible(body: memoryview, position: int, left: int) -> ProduceRequest:
    end = len(body)
    transactional_id = None
    size = body[position]
    position += 1
    if size:
        if size > 127:
            size, position = continue_uvarint(body, position, size)
        stop = position + size - 1
        if stop > end:
            raise _refuse("transactional_id")
        transactional_id = str(body[position:stop], "utf-8")
        position = stop
    acks, timeout_ms, topics = _acks_timeout_varint(body, position)
    position += 7
    if topics > 127:
        topics, position = continue_uvarint(body, position, topics)
    if not topics:
        raise _refuse("topic_data")
    partitions: list[ProducePartition] = []
    add = partitions.append
    for _ in range(topics - 1):
        size = body[position]
        position += 1
        if size > 127:
            size, position = continue_uvarint(body, position, size)
        stop = position + size - 1
        if stop > end or not size:
            raise _refuse("name")
        topic = str(body[position:stop], "utf-8")
        count = body[stop]
        position = stop + 1
        if count > 127:
            count, position = continue_uvarint(body, position, count)
        if not count:
            raise _refuse("partition_data")
        left -= max(1, count - 1)
        if left < 0:
            raise _too_many()
        for _ in range(count - 1):
            index, size = _index_varint(body, position)
            position += 5
            if size > 127:
                size, position = continue_uvarint(body, position, size)
            if size > 1:
                stop = position + size - 1
                if stop > end:
                    raise _refuse("records")
                add(ProducePartition(topic, index, body[position:stop]))
                position = stop
            else:
                add(ProducePartition(topic, index, _EMPTY if size else None))
            tags = body[position]
            position += 1
            if tags:
                left -= tags
                if left < 0:
                    raise _too_many()
                position = _skip_counted_tags(body, position, tags)
        tags = body[position]
        position += 1
        if tags:
            left -= tags
            position = _skip_counted_tags(body, position, tags)
    tags = body[position]
    if tags:
        _skip_counted_tags(body, position + 1, tags)
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def _decode_plain(version: int, body: memoryview, position: int, left: int) -> ProduceRequest:
    end = len(body)
    transactional_id = None
    size = -1
    if version >= _TRANSACTIONAL_ID_FROM:
        (size,) = _i16.unpack_from(body, position)
        position += 2
    if size != -1:
        stop = position + size
        if size < 0 or stop > end:
            raise _refuse("transactional_id")
        transactional_id = str(body[position:stop], "utf-8")
        position = stop
    acks, timeout_ms, topics = _acks_timeout_count(body, position)
    position += 10
    if topics < 0:
        raise _refuse("topic_data")
    partitions: list[ProducePartition] = []
    add = partitions.append
    for _ in range(topics):
        (size,) = _i16.unpack_from(body, position)
        position += 2
        stop = position + size
        if size < 0 or stop > end:
            raise _refuse("name")
        topic = str(body[position:stop], "utf-8")
        (count,) = _i32.unpack_from(body, stop)
        position = stop + 4
        if count < 0:
            raise _refuse("partition_data")
        left -= max(1, count)
        if left < 0:
            raise _too_many()
        for _ in range(count):
            index, size = _index_size(body, position)
            position += 8
            if size > 0:
                stop = position + size
                if stop > end:
                    raise _refuse("records")
                add(ProducePartition(topic, index, body[position:stop]))
                position = stop
            elif size >= -1:
                add(ProducePartition(topic, index, None if size else _EMPTY))
            else:
                raise _refuse("records")
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def _skip_counted_tags(body: memoryview, position: int, count: int) -> int:
    if count > 127:
        count, position = continue_uvarint(body, position, count)
    return skip_tags(body, position, count)


def _too_many() -> ProtocolError:
    return ProtocolError("a produce request for too many partitions (limits.request_entries)")


def _refuse(field: str) -> ProtocolError:
    return ProtocolError(f"ProduceRequest.{field} has a length that cannot be")


def encode_response(
    version: int,
    correlation_id: int,
    results: Sequence[ProduceResult],
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The whole frame; consecutive results of one topic share its entry. `endpoints` are those of current leaders."""
    if len(results) == 1 and version >= FLEXIBLE_FROM and results[0][6:] == _NO_DETAILS and not endpoints:
        topic, index, code, base, appended_ms, start = results[0][:6]
        name = topic.encode()
        if len(name) <= _SHORT_NAME_BYTES:
            head = _one_head(_ONE_BYTES + len(name), correlation_id, 2, len(name) + 1)
            return head + name + _one_tail(2, index, code, base, appended_ms, start, 1, 0, throttle_ms)
    return run(encode_in_steps(version, correlation_id, results, throttle_ms, endpoints))


def encode_in_steps(
    version: int,
    correlation_id: int,
    results: Sequence[ProduceResult],
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Steps[bytes]:
    """The same, with a pause now and then."""
    if version >= FLEXIBLE_FROM:
        encoded = yield from _encode_flexible(version, correlation_id, results, throttle_ms)
        encoded += _endpoints_tag(endpoints) if endpoints and version >= _CURRENT_LEADER_FROM else b"\0"
    else:
        encoded = yield from _encode_plain(version, correlation_id, results, throttle_ms)
    return _i32.pack(len(encoded)) + encoded


def _encode_flexible(
    version: int, correlation_id: int, results: Sequence[ProduceResult], throttle_ms: int
) -> Steps[bytes]:
    topics = _by_topic(results)
    parts = [_correlation_id_no_tags(correlation_id), uvarint(len(topics) + 1)]
    written = 0
    for topic, partitions in topics:
        name = topic.encode()
        parts += (uvarint(len(name) + 1), name, uvarint(len(partitions) + 1))
        for result in partitions:
            written += 1
            if not written & _STEP_MASK:
                yield
            _, index, code, base, appended_ms, start, message, errors, leader = result
            if message is None and not errors and leader is None:
                parts.append(_good_partition(index, code, base, appended_ms, start, 1, 0))
            else:
                parts.append(_partition(index, code, base, appended_ms, start))
                parts.append(_flexible_details(version, result))
        parts.append(b"\0")
    parts.append(_i32.pack(throttle_ms))
    return b"".join(parts)


def _endpoints_tag(endpoints: Sequence[NodeEndpoint]) -> bytes:
    parts = [uvarint(len(endpoints) + 1)]
    for broker_id, host, port, rack in endpoints:
        parts += (_i32.pack(broker_id), _compact(host), _i32.pack(port), _compact(rack), b"\0")
    encoded = b"".join(parts)
    return b"\x01\0" + uvarint(len(encoded)) + encoded


def _flexible_details(version: int, result: ProduceResult) -> bytes:
    parts = [uvarint(len(result.record_errors) + 1)]
    for batch_index, message in result.record_errors:
        parts += (_i32.pack(batch_index), _compact(message), b"\0")
    parts.append(_compact(result.error_message))
    if version >= _CURRENT_LEADER_FROM and result.current_leader is not None:
        parts.append(_current_leader_tag(1, 0, _CURRENT_LEADER_SIZE, *result.current_leader))
    else:
        parts.append(b"\0")
    return b"".join(parts)


def _encode_plain(
    version: int, correlation_id: int, results: Sequence[ProduceResult], throttle_ms: int
) -> Steps[bytes]:
    topics = _by_topic(results)
    written = 0
    parts = [_i32.pack(correlation_id), _i32.pack(len(topics))]
    for topic, partitions in topics:
        parts += (_string(topic), _i32.pack(len(partitions)))
        for result in partitions:
            written += 1
            if not written & _STEP_MASK:
                yield
            _, index, code, base, appended_ms, start, message, errors, _ = result
            if version >= _LOG_START_OFFSET_FROM:
                parts.append(_partition(index, code, base, appended_ms, start))
            elif version >= _LOG_APPEND_TIME_FROM:
                parts.append(_plain_partition(index, code, base, appended_ms))
            else:
                parts.append(_oldest_partition(index, code, base))
            if version >= _RECORD_ERRORS_FROM:
                parts.append(_i32.pack(len(errors)))
                for batch_index, error in errors:
                    parts += (_i32.pack(batch_index), _string(error))
                parts.append(_string(message))
    if version >= _THROTTLE_TIME_FROM:
        parts.append(_i32.pack(throttle_ms))
    return b"".join(parts)


def throttle_time_at(version: int, frame: bytes) -> int | None:
    """Where `throttle_time_ms` is in an encoded response; None if this version does not have it."""
    if version < FLEXIBLE_FROM:
        return len(frame) - _i32.size if version >= _THROTTLE_TIME_FROM else None
    topics, at = read_uvarint(frame, 2 * _i32.size + 1)
    for _ in range(topics - 1):
        at = _after_text(frame, at)
        partitions, at = read_uvarint(frame, at)
        for _ in range(partitions - 1):
            errors, at = read_uvarint(frame, at + _PARTITION_BYTES)
            for _ in range(errors - 1):
                at = skip_tag_section(frame, _after_text(frame, at + _i32.size))
            at = skip_tag_section(frame, _after_text(frame, at))
        at = skip_tag_section(frame, at)
    return at


def _after_text(frame: bytes, at: int) -> int:
    size, at = read_uvarint(frame, at)
    return at + max(0, size - 1)


def _by_topic(results: Sequence[ProduceResult]) -> list[tuple[str, list[ProduceResult]]]:
    grouped: list[tuple[str, list[ProduceResult]]] = []
    last = None
    for result in results:
        if result.topic != last:
            last = result.topic
            grouped.append((last, [result]))
        else:
            grouped[-1][1].append(result)
    return grouped


def _compact(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return uvarint(len(raw) + 1) + raw


def _string(text: str | None) -> bytes:
    if text is None:
        return _i16.pack(-1)
    raw = text.encode()
    return _i16.pack(len(raw)) + raw
