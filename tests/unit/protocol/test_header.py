from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioHeaderV2

from penstock.errors import ProtocolError
from penstock.protocol.apis import APIS, Api, decode_header
from penstock.protocol.header import encode_response_header
from unit.protocol.kio_oracle import kio_write, plain_values

_METADATA, _API_VERSIONS = 3, 18


def _header(key: int, version: int, client_id: bytes | None, tags: bytes) -> bytes:
    size = -1 if client_id is None else len(client_id)
    return struct.pack(">hhih", key, version, 42, size) + (client_id or b"") + tags


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@settings(max_examples=20, derandomize=True, database=None, deadline=None)
@given(data=st.data())
def test_headers_that_kio_writes_are_read(api: Api, data: st.DataObject) -> None:
    version = data.draw(st.integers(api.min_version, api.max_version))
    theirs = KioHeaderV2 if version >= api.flexible_from else KioHeaderV1
    plain = data.draw(plain_values(theirs))
    plain.update(request_api_key=api.key, request_api_version=version)
    written = kio_write(theirs, plain)

    header = decode_header(memoryview(written + b"body"))

    assert header == (
        plain["request_api_key"],
        plain["request_api_version"],
        plain["correlation_id"],
        plain["client_id"],
        len(written),
    )


@pytest.mark.parametrize(("version", "tags"), [(8, b""), (9, b"\0"), (9, b"\x01\x05\x02ab")])
def test_the_body_begins_after_the_tags_of_a_flexible_header(version: int, tags: bytes) -> None:
    written = _header(_METADATA, version, b"client", tags)

    assert decode_header(written + b"body").body_start == len(written)


def test_the_client_id_keeps_its_two_byte_length_in_flexible_headers() -> None:
    assert decode_header(_header(_METADATA, 12, b"client", b"\0")).client_id == "client"


@pytest.mark.parametrize(("raw", "client_id"), [(None, None), (b"", "")])
def test_a_null_client_id_differs_from_an_empty_one(raw: bytes | None, client_id: str | None) -> None:
    assert decode_header(_header(_METADATA, 1, raw, b"")).client_id == client_id


def test_api_versions_of_an_unknown_version_is_read_with_a_flexible_header() -> None:
    assert decode_header(_header(_API_VERSIONS, 99, b"client", b"\0")).api_version == 99


@pytest.mark.parametrize("version", [1, 12])
def test_every_truncation_of_a_header_is_refused(version: int) -> None:
    whole = _header(_METADATA, version, b"client", b"\x01\x05\x02ab" if version == 12 else b"")

    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode_header(memoryview(whole[:length]))


def test_an_unknown_api_key_is_refused() -> None:
    with pytest.raises(ProtocolError, match="unknown API key 999"):
        decode_header(_header(999, 0, None, b""))


def test_a_client_id_of_negative_length_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_header(struct.pack(">hhih", _METADATA, 0, 1, -2))


def test_a_client_id_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode_header(_header(_METADATA, 0, b"\xff", b""))


@pytest.mark.parametrize(
    ("key", "flexible", "encoded"),
    [
        (_METADATA, False, b"\0\0\0\x2a"),
        (_METADATA, True, b"\0\0\0\x2a\0"),
        (_API_VERSIONS, False, b"\0\0\0\x2a"),
        (_API_VERSIONS, True, b"\0\0\0\x2a"),
    ],
)
def test_response_headers_end_in_tags_when_flexible_except_for_api_versions(
    key: int, flexible: bool, encoded: bytes
) -> None:
    assert encode_response_header(key, flexible, 42) == encoded
