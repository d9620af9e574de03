"""Hostile bytes: whatever a peer sends, decoding ends soon, in a message or in `ProtocolError`.

Examples are the same in every run. Requests come in two kinds: bytes at random, and valid requests that were
cut, overwritten, lengthened, or had a length blown up.
"""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.apis import APIS, PRODUCE, Api, decode_header, decode_request
from unit.protocol.kio_oracle import crowded_values, kio_class, kio_write, plain_values

# kio writes the requests, and begins here.
_OLDEST_IN_KIO = {PRODUCE.key: 3}

_API_VERSIONS_PAIRS = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in APIS.values()
    for oldest in (_OLDEST_IN_KIO.get(api.key, api.min_version),)
    for version in sorted({oldest, api.flexible_from - 1, api.flexible_from, api.max_version})
    if api.supports(version)
]

# The dearest bytes: two can be a struct, an object of 48 bytes with its places in a list and in a tuple;
# seven can be a partition to append one byte to, with a view of 184 bytes.
_MEMORY_PER_BYTE = 40
_MEMORY_AT_REST = 8 * 1024

_HUGE = [
    struct.pack(">i", 2**31 - 1),
    struct.pack(">i", -1),
    struct.pack(">i", -(2**31)),
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x7f\xff",
    b"\x80\x00",
]


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def _decode(api: Api, version: int, data: bytes) -> None:
    try:
        decode_request(api, version, memoryview(data))
    except ProtocolError:
        pass


@st.composite
def _mutated(draw: st.DrawFn, valid: bytes) -> bytes:
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["cut", "overwrite", "insert", "blow up"])):
            case "cut":
                del data[position:]
            case "overwrite":
                data[position : position + 1] = draw(st.binary(min_size=1, max_size=1))
            case "insert":
                data[position:position] = draw(st.binary(max_size=8))
            case "blow up":
                huge = draw(st.sampled_from(_HUGE))
                data[position : position + len(huge)] = huge
    return bytes(data)


@pytest.mark.parametrize(("api", "version"), _API_VERSIONS_PAIRS)
@_settings(40)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(api: Api, version: int, data: bytes) -> None:
    _decode(api, version, data)


@pytest.mark.parametrize(("api", "version"), _API_VERSIONS_PAIRS)
@_settings(30)
@given(data=st.data())
def test_mutated_requests_are_read_or_refused(api: Api, version: int, data: st.DataObject) -> None:
    theirs = kio_class(api, version, "Request")
    valid = kio_write(theirs, data.draw(plain_values(theirs)))
    decode_request(api, version, memoryview(valid))

    _decode(api, version, data.draw(_mutated(valid)))


@_settings(300)
@given(data=st.binary(max_size=40))
def test_random_headers_are_read_or_refused(data: bytes) -> None:
    try:
        header = decode_header(memoryview(data))
    except ProtocolError:
        return
    assert header.body_start <= len(data)


@_settings(300)
@given(key=st.sampled_from(sorted(APIS)), version=st.integers(0, 20), rest=st.binary(max_size=40))
def test_headers_of_known_apis_are_read_or_refused(key: int, version: int, rest: bytes) -> None:
    try:
        header = decode_header(memoryview(struct.pack(">hhi", key, version, 1) + rest))
    except ProtocolError:
        return
    assert header.body_start <= 8 + len(rest)


def _peak_memory(api: Api, version: int, data: bytes) -> int:
    # What is compiled on first use is paid once, not per request.
    _decode(api, version, b"")
    tracemalloc.start()
    try:
        _decode(api, version, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["", "ab"])
@pytest.mark.parametrize(("api", "version"), _API_VERSIONS_PAIRS)
def test_crowded_requests_take_no_more_than_a_small_multiple_of_their_size(api: Api, version: int, text: str) -> None:
    theirs = kio_class(api, version, "Request")
    for plain in crowded_values(theirs, 1000, text):
        data = kio_write(theirs, plain)

        assert _peak_memory(api, version, data) < _MEMORY_AT_REST + _MEMORY_PER_BYTE * len(data)


@pytest.mark.parametrize(("api", "version"), _API_VERSIONS_PAIRS)
@pytest.mark.parametrize("huge", _HUGE)
def test_a_huge_length_anywhere_allocates_nothing_for_it(api: Api, version: int, huge: bytes) -> None:
    theirs = kio_class(api, version, "Request")
    valid = [kio_write(theirs, plain) for plain in crowded_values(theirs, 2, "ab")]
    for data in valid:
        for position in range(len(data)):
            mutated = data[:position] + huge + data[position + len(huge) :]

            assert _peak_memory(api, version, mutated) < _MEMORY_AT_REST
