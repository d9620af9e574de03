"""Writing `throttle_time_ms` into a response that is encoded already.

How long a client is throttled is known last: what answering took counts. The field is at the beginning of every
response that has it, but for two: in ApiVersions it stands behind the keys, in Produce behind the partitions.
"""

from __future__ import annotations

import struct
from functools import cache

from penstock.parts import Part
from penstock.protocol.apis import API_VERSIONS, APIS, FETCH, PRODUCE
from penstock.protocol.produce import throttle_time_at as _produce_throttle_time_at
from penstock.protocol.schema import Fixed, columns
from penstock.protocol.varint import read_uvarint

_I32 = struct.Struct(">i")
_HEADER_BYTES = 8
"""Size and correlation id."""
_FIELD = "throttle_time_ms"
_WALKED_BYTES = 64 * 1024
"""A longer Produce response is left as it is: looking for the field would take longer than it is worth."""


def with_throttle_time(api_key: int, version: int, parts: list[Part], throttle_ms: int) -> list[Part]:
    """The response with the field set; as it is if it does not have the field, or is none."""
    if not parts or not isinstance(parts[0], bytes):
        return parts
    head, rest = parts[0], parts[1:]
    if len(head) == _HEADER_BYTES and rest and isinstance(rest[0], bytes):
        head, rest = head + rest[0], rest[1:]
    at = _position(api_key, version, head)
    if at is None:
        return parts
    return [head[:at] + _I32.pack(throttle_ms) + head[at + _I32.size :], *rest]


def _position(api_key: int, version: int, frame: bytes) -> int | None:
    if api_key == PRODUCE.key:
        return _produce_throttle_time_at(version, frame) if len(frame) <= _WALKED_BYTES else None
    if api_key == API_VERSIONS.key:
        return _api_versions_position(version, frame)
    return _fixed_position(api_key, version)


@cache
def _fixed_position(api_key: int, version: int) -> int | None:
    api = APIS[api_key]
    position = _HEADER_BYTES + (1 if version >= api.flexible_from else 0)
    if api is FETCH:
        return position
    for field in columns(api.response, version):
        if field.name == _FIELD:
            return position
        if not isinstance(field.kind, Fixed):
            break
        position += field.kind.size
    return None


def _api_versions_position(version: int, frame: bytes) -> int | None:
    """Behind an error code and the keys: three i16 each, and in flexible versions a section of tagged fields."""
    keys_at = _HEADER_BYTES + 2
    if version == 0 or version > API_VERSIONS.max_version:
        return None  # a version that is too new is answered in version 0
    if version >= API_VERSIONS.flexible_from:
        count, position = read_uvarint(frame, keys_at)
        return position + 7 * (count - 1)
    return keys_at + _I32.size + 6 * int(_I32.unpack_from(frame, keys_at)[0])
