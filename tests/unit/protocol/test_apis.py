from __future__ import annotations

import struct

import pytest

from penstock.errors import Code, ProtocolError
from penstock.protocol.apis import (
    API_VERSIONS,
    APIS,
    FETCH,
    METADATA,
    PRODUCE,
    Api,
    advertise,
    decode_request,
    encode_response,
)
from penstock.protocol.encoding import encode
from penstock.protocol.messages.api_versions import ApiVersionsResponse
from penstock.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from unit.protocol.kio_oracle import kio_class, kio_read


def test_a_response_frame_is_size_then_header_then_body() -> None:
    response = MetadataResponse(brokers=(), topics=())

    frame = encode_response(METADATA, 12, 42, response)

    assert frame == struct.pack(">iix", len(frame) - 4, 42) + encode(response, 12)


def test_api_versions_answers_have_the_oldest_header_even_when_flexible() -> None:
    response = ApiVersionsResponse(api_keys=advertise(APIS))

    frame = encode_response(API_VERSIONS, 4, 42, response)

    assert frame == struct.pack(">ii", len(frame) - 4, 42) + encode(response, 4)


def test_an_unknown_version_of_api_versions_can_be_answered_in_version_0() -> None:
    response = ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=advertise([18, 3]))

    frame = encode_response(API_VERSIONS, 0, 42, response)

    assert kio_read(kio_class(API_VERSIONS, 0, "Response"), frame[8:]) == {
        "error_code": 35,
        "api_keys": [
            {"api_key": 3, "min_version": 0, "max_version": 13},
            {"api_key": 18, "min_version": 0, "max_version": 4},
        ],
    }


def test_produce_and_fetch_are_advertised_in_the_versions_coded_by_hand() -> None:
    assert [(api.api_key, api.min_version, api.max_version) for api in advertise([1, 0])] == [
        (0, 0, 12),
        (1, 4, 16),
    ]


def test_a_request_is_decoded_from_where_its_header_ends() -> None:
    request = MetadataRequest(topics=(MetadataRequestTopic(name="orders"),))

    body = memoryview(b"header" + encode(request, 12))

    assert decode_request(METADATA, 12, body, position=6) == request


@pytest.mark.parametrize(("api", "version"), [(PRODUCE, 13), (FETCH, 3), (FETCH, 17), (METADATA, -1), (METADATA, 14)])
def test_a_version_outside_the_advertised_range_is_refused(api: Api, version: int) -> None:
    assert not api.supports(version)
    with pytest.raises(ProtocolError, match="not supported"):
        decode_request(api, version, memoryview(b"\0" * 100))


def test_a_message_that_does_not_answer_the_api_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="MetadataResponse does not answer ApiVersions"):
        encode_response(API_VERSIONS, 0, 1, MetadataResponse(brokers=(), topics=()))
    with pytest.raises(ValueError, match="does not answer Produce"):
        encode_response(PRODUCE, 3, 1, MetadataResponse(brokers=(), topics=()))
