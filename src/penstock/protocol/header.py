"""Request and response headers.

    request   v1  api_key i16 | api_version i16 | correlation_id i32 | client_id nullable string (i16 length)
              v2  the same, then tagged fields
    response  v0  correlation_id i32
              v1  correlation_id i32, then tagged fields

The header version follows from the API and its version: flexible bodies have request v2 and response v1. Two
exceptions: `client_id` keeps its i16 length in v2, and an ApiVersions response always has header v0, because
a client reads it before it knows what the broker speaks.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.protocol.varint import skip_tag_section

API_VERSIONS_KEY = 18

_REQUEST_HEADER = struct.Struct(">hhih").unpack_from
_REQUEST_HEADER_SIZE = 10
_CORRELATION_ID = struct.Struct(">i").pack
_CORRELATION_ID_AND_NO_TAGS = struct.Struct(">ix").pack


class RequestHeader(NamedTuple):
    """The client, the API and version, and where in the frame the body begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_start: int


def decode_request_header(
    frame: bytes | memoryview, flexible_from: Mapping[int, int], position: int = 0
) -> RequestHeader:
    """Reads the header of a request; `flexible_from` gives each known API's first flexible version."""
    try:
        key, version, correlation_id, size = _REQUEST_HEADER(frame, position)
        body = position + _REQUEST_HEADER_SIZE
        first_flexible = flexible_from.get(key)
        if first_flexible is None:
            raise ProtocolError(f"unknown API key {key}")
        client_id = None
        if size > 0:
            start = body
            body += size
            if body > len(frame):
                raise ProtocolError("the client id runs past the end of the request")
            client_id = str(frame[start:body], "utf-8")
        elif size == 0:
            client_id = ""
        elif size != -1:
            raise ProtocolError("the client id has a negative length")
        if version >= first_flexible:
            body = skip_tag_section(frame, body) if frame[body] else body + 1
    except (struct.error, IndexError):
        raise ProtocolError("the request ends inside its header") from None
    except UnicodeDecodeError:
        raise ProtocolError("the client id is not UTF-8") from None
    return RequestHeader(key, version, correlation_id, client_id, body)


def encode_response_header(api_key: int, flexible: bool, correlation_id: int) -> bytes:
    if flexible and api_key != API_VERSIONS_KEY:
        return _CORRELATION_ID_AND_NO_TAGS(correlation_id)
    return _CORRELATION_ID(correlation_id)
