"""The throttle time in responses that are encoded already, read by an independent implementation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.parts import Part, read_parts
from penstock.protocol import apis, fetch, produce
from penstock.protocol.apis import Api
from penstock.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from penstock.protocol.messages.metadata import MetadataResponse
from penstock.protocol.produce import NodeEndpoint, ProduceResult
from penstock.protocol.throttle_time import with_throttle_time
from unit.protocol.kio_oracle import kio_class, kio_read, plain_values, to_ours

THROTTLE_MS = 123_456
RESULTS = [
    ProduceResult("a", 0, 0, 5, -1, 0),
    ProduceResult("a", 1, 3, error_message="no", record_errors=((1, "bad"), (2, None))),
    ProduceResult("b", 0, 6, error_message="moved", current_leader=(2, 7)),
]
ENDPOINTS = [NodeEndpoint(2, "a-host", 9092, None), NodeEndpoint(3, "", 1, "rack\0")]


def throttled(api: Api, version: int, parts: list[Part]) -> dict[str, object]:
    before = read_parts(parts)
    frame = read_parts(with_throttle_time(api.key, version, parts, THROTTLE_MS))
    assert len(frame) == len(before)
    flexible = version >= api.flexible_from and api is not apis.API_VERSIONS
    return kio_read(kio_class(api, version, "Response"), frame[9 if flexible else 8 :])


@pytest.mark.parametrize("version", range(3, apis.PRODUCE.max_version + 1))
@pytest.mark.parametrize("endpoints", [(), ENDPOINTS])
def test_in_a_produce_response(version: int, endpoints: list[NodeEndpoint]) -> None:
    def encoded(throttle_ms: int) -> bytes:
        return produce.encode_response(version, 7, RESULTS, throttle_ms, endpoints=endpoints)

    assert with_throttle_time(0, version, [encoded(0)], THROTTLE_MS) == [encoded(THROTTLE_MS)]


def test_not_in_a_produce_response_that_has_none() -> None:
    frame = produce.encode_response(0, 7, RESULTS[:1])
    assert with_throttle_time(0, 0, [frame], THROTTLE_MS) == [frame]
    assert with_throttle_time(0, 11, [], THROTTLE_MS) == []


@pytest.mark.parametrize("version", range(apis.FETCH.min_version, apis.FETCH.max_version + 1))
def test_in_a_fetch_response(version: int) -> None:
    parts = fetch.encode_response(version, 7, ())
    assert throttled(apis.FETCH, version, parts)["throttle_time_ms"] == THROTTLE_MS


@pytest.mark.parametrize("version", range(1, apis.API_VERSIONS.max_version + 1))
@pytest.mark.parametrize("count", [0, 1, 40, 200])
def test_in_an_api_versions_response(version: int, count: int) -> None:
    keys = tuple(ApiVersion(api_key=number, min_version=0, max_version=number) for number in range(count))
    frame = apis.encode_response(apis.API_VERSIONS, version, 7, ApiVersionsResponse(api_keys=keys))
    assert throttled(apis.API_VERSIONS, version, [frame])["throttle_time_ms"] == THROTTLE_MS


def test_an_api_versions_response_in_version_0_has_none() -> None:
    frame = apis.encode_response(apis.API_VERSIONS, 0, 7, ApiVersionsResponse(api_keys=()))
    for version in (0, 99):
        assert with_throttle_time(apis.API_VERSIONS.key, version, [frame], THROTTLE_MS) == [frame]


def test_in_a_response_whose_head_is_a_part_of_its_own() -> None:
    response = MetadataResponse(brokers=(), cluster_id="c", controller_id=1, topics=())
    frame = apis.encode_response(apis.METADATA, 12, 7, response)
    found = throttled(apis.METADATA, 12, [frame[:8], frame[8:]])
    assert (found["throttle_time_ms"], found["cluster_id"]) == (THROTTLE_MS, "c")


@pytest.mark.parametrize("api", [api for api in apis.APIS.values() if api.by_hand is None], ids=lambda api: api.name)
@settings(max_examples=3, derandomize=True, database=None, deadline=None)
@given(st.data())
def test_in_every_response_that_has_it(api: Api, data: st.DataObject) -> None:
    for version in range(api.min_version, api.max_version + 1):
        plain = data.draw(plain_values(kio_class(api, version, "Response")))
        frame = apis.encode_response(api, version, 7, to_ours(api.response, plain))
        if "throttle_time_ms" in plain:
            assert throttled(api, version, [frame]) == {**plain, "throttle_time_ms": THROTTLE_MS}
        else:
            assert with_throttle_time(api.key, version, [frame], THROTTLE_MS) == [frame]
