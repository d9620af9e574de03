"""The format of a message in a spill file. Pure.

```
 0  u32  length of what follows the crc
 4  u32  crc-32c of that
 8  u64  number of the entry: larger than that of the entry before
16  i32  partition, -1: chosen by the key
20  i64  timestamp, ms since 1970, -1: the time of sending
28       topic, key, value: each an i32 length (-1: absent) and that many bytes
         i32 number of headers, and for each its name and its value in the same way
```
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.checksum import crc32c
from penstock.sdk.ports import Outgoing

_HEAD = struct.Struct(">II")
_FIXED = struct.Struct(">Qiq")
_LENGTH = struct.Struct(">i")
_ABSENT = -1


class SpilledMessage(NamedTuple):
    """A message and its number in the spill folder."""

    number: int
    outgoing: Outgoing


def encoded(entry: SpilledMessage) -> bytes:
    """The bytes of an entry in a file."""
    number, outgoing = entry
    partition = _ABSENT if outgoing.partition is None else outgoing.partition
    timestamp_ms = _ABSENT if outgoing.timestamp_ms is None else outgoing.timestamp_ms
    parts = [_FIXED.pack(number, partition, timestamp_ms)]
    for field in (outgoing.topic.encode(), outgoing.key, outgoing.value):
        _put(parts, field)
    parts.append(_LENGTH.pack(len(outgoing.headers)))
    for name, value in outgoing.headers:
        _put(parts, name.encode())
        _put(parts, value)
    body = b"".join(parts)
    return _HEAD.pack(len(body), crc32c(body)) + body


def entries_in(raw: bytes) -> Iterator[tuple[SpilledMessage, int]]:
    """Each entry and the position behind it, up to the first one that is incomplete or damaged."""
    position = 0
    while position + _HEAD.size <= len(raw):
        length, crc = _HEAD.unpack_from(raw, position)
        start = position + _HEAD.size
        body = raw[start : start + length]
        if len(body) < max(length, _FIXED.size) or crc32c(body) != crc:
            return
        position = start + length
        yield _decoded(body), position


def _put(parts: list[bytes], field: bytes | None) -> None:
    parts.append(_LENGTH.pack(_ABSENT if field is None else len(field)))
    if field is not None:
        parts.append(field)


def _decoded(body: bytes) -> SpilledMessage:
    number, partition, timestamp_ms = _FIXED.unpack_from(body)
    position = _FIXED.size

    def take() -> bytes | None:
        nonlocal position
        (length,) = _LENGTH.unpack_from(body, position)
        position += _LENGTH.size
        if length == _ABSENT:
            return None
        position += length
        return body[position - length : position]

    topic, key, value = take(), take(), take()
    (count,) = _LENGTH.unpack_from(body, position)
    position += _LENGTH.size
    headers = tuple(((take() or b"").decode(), take()) for _ in range(count))
    return SpilledMessage(
        number,
        Outgoing(
            topic=(topic or b"").decode(),
            value=value,
            key=key,
            headers=headers,
            partition=None if partition == _ABSENT else partition,
            timestamp_ms=None if timestamp_ms == _ABSENT else timestamp_ms,
        ),
    )
