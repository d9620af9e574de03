"""The worst that a client can ask of each API, made from the descriptions of the messages.

For every list in a request, at any depth, there is one request in which this list has as many entries as are allowed.
So an API, or a list in it, that is added later has its worst request already. Half of the entries are the same, half
are all different. Produce and Fetch, which are coded by hand, are written down here by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.protocol.encoding import encode
from penstock.protocol.schema import UUID_CODE, Array, Blob, Column, Fixed, Struct, Text, columns
from penstock.protocol.varint import uvarint

MIB = 1 << 20
MAX_BYTES = 8 * MIB - 1024

ListPath = tuple[str, ...]

_columns = cache(columns)
_TRUE = {"validate_only", "include_documentation", "include_synonyms"}


@dataclass(frozen=True, slots=True)
class WorstRequest:
    """One request, as it is sent without its size and header."""

    api: Api
    version: int
    what: str
    body: bytes

    def __str__(self) -> str:
        return f"{self.api.name} v{self.version} {self.what}"


@dataclass(frozen=True, slots=True)
class Known:
    """Names that exist at the broker."""

    topic: str
    topic_id: UUID
    group: str

    def name_for(self, field: str) -> str:
        if "group" in field:
            return self.group
        return self.topic


def worst_requests(key: int, known: Known, entries: int) -> Iterator[WorstRequest]:
    """The worst requests of an API in its newest version."""
    api = apis.APIS[key]
    if api is apis.PRODUCE:
        yield from _worst_produces(known, entries)
    elif api is apis.FETCH:
        yield from _worst_fetches(known, entries)
    else:
        yield from _worst_described(api, known, entries)


def _worst_described(api: Api, known: Known, entries: int) -> Iterator[WorstRequest]:
    version = api.max_version
    lists = list(_lists(api.request, version, ()))
    for path in lists or [()]:
        count, body = entries - len(path), b""
        while not body or len(body) > MAX_BYTES:
            body = encode(_message(api.request, version, known, path, count), version)
            count = count * 3 // 4
        yield WorstRequest(api, version, f"many {'.'.join(path)}" if path else "as it is", body)


def _lists(cls: type, version: int, before: ListPath) -> Iterator[ListPath]:
    for column in _columns(cls, version):
        kind: Any = column.kind
        if isinstance(kind, Array):
            yield (*before, column.name)
            kind = kind.item
        if isinstance(kind, Struct):
            yield from _lists(kind.cls, version, (*before, column.name))


def _message(cls: type, version: int, known: Known, path: ListPath, count: int) -> Any:
    return cls(**{column.name: _value(column, version, known, path, count) for column in _columns(cls, version)})


def _value(column: Column, version: int, known: Known, path: ListPath, count: int, number: int = 0) -> Any:
    name, kind = column.name, column.kind
    if isinstance(kind, Array):
        if path[:1] != (name,):
            return None if column.nullable else ()
        of_item = Column(name=name, kind=kind.item, nullable=False, tag=None, default=None)
        if len(path) > 1:
            return (_value(of_item, version, known, path, count),)
        # The same one, then all different ones.
        same, half = _value(of_item, version, known, (), 0), count // 2
        return (same,) * half + tuple(_value(of_item, version, known, (), 0, at) for at in range(half, count))
    match kind:
        case Struct(cls=nested):
            if column.nullable and path[:1] != (name,):
                return None
            made = _message(nested, version, known, path[1:], count)
            return _numbered(made, known, number) if number else made
        case Text():
            return f"name-{number}" if number else known.name_for(name)
        case Blob():
            return b""
        case Fixed(code=code) if code == UUID_CODE:
            return UUID(int=number) if number else known.topic_id
        case Fixed(code="?"):
            return name in _TRUE
        case Fixed(code="d"):
            return 0.0
    return min(number, 100)


def _numbered(made: Any, known: Known, number: int) -> Any:
    """The same struct under another name."""
    for field in made.__slots__:
        value = getattr(made, field)
        if isinstance(value, str):
            setattr(made, field, f"name-{number}")
            break
    else:
        for field in made.__slots__:
            value = getattr(made, field)
            if isinstance(value, int) and not isinstance(value, bool):
                setattr(made, field, number)
                break
    return made


def _compact(text: str) -> bytes:
    return uvarint(len(text) + 1) + text.encode()


def _worst_produces(known: Known, entries: int) -> Iterator[WorstRequest]:
    head = b"\0" + struct.pack(">hi", 1, 1000)
    empty = struct.pack(">i", 0) + b"\x01\0"
    body = head + b"\x02" + _compact(known.topic) + uvarint(entries + 1) + empty * entries + b"\0\0"
    yield WorstRequest(apis.PRODUCE, 12, "many empty partitions", body)
    junk = struct.pack(">i", 0) + uvarint(62) + b"\0" * 61 + b"\0"
    body = head + b"\x02" + _compact(known.topic) + uvarint(entries + 1) + junk * entries + b"\0\0"
    yield WorstRequest(apis.PRODUCE, 12, "many broken batches", body)
    topics = b"".join(_compact(f"name-{number}") + b"\x02" + empty + b"\0" for number in range(entries))
    yield WorstRequest(apis.PRODUCE, 12, "many topics", head + uvarint(entries + 1) + topics + b"\0")


def _worst_fetches(known: Known, entries: int) -> Iterator[WorstRequest]:
    def partition(index: int) -> bytes:
        return struct.pack(">iiqiqi", index, -1, 0, -1, -1, MIB) + b"\0"

    def fetch(topics: bytes, wait_ms: int, forgotten: bytes = b"\x01") -> bytes:
        return struct.pack(">iiibii", wait_ms, 1, 1 << 26, 0, 0, -1) + topics + forgotten + b"\x01\0"

    same = b"\x02" + known.topic_id.bytes + uvarint(entries + 1) + partition(0) * entries + b"\0"
    for wait_ms in (0, 60_000):
        yield WorstRequest(apis.FETCH, 16, f"the same partition, waiting {wait_ms} ms", fetch(same, wait_ms))
    different = b"".join(partition(index) for index in range(entries))
    topics = b"\x02" + known.topic_id.bytes + uvarint(entries + 1) + different + b"\0"
    yield WorstRequest(apis.FETCH, 16, "partitions that do not exist", fetch(topics, 0))
    many = b"".join(UUID(int=number).bytes + b"\x02" + partition(0) + b"\0" for number in range(entries))
    topics = uvarint(entries + 1) + many
    yield WorstRequest(apis.FETCH, 16, "topics that do not exist", fetch(topics, 0))
    forgotten = b"\x02" + known.topic_id.bytes + uvarint(entries + 1) + struct.pack(">i", 0) * entries + b"\0"
    yield WorstRequest(apis.FETCH, 16, "forgotten partitions", fetch(b"\x01", 0, forgotten))
