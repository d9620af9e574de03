"""Every described API in every advertised version, both ways, against kio."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from penstock.errors import Code
from penstock.protocol.apis import APIS, Api
from penstock.protocol.decoding import decode
from penstock.protocol.encoding import encode
from unit.protocol.kio_oracle import kio_class, kio_read, kio_write, plain_values, to_ours

_DESCRIBED = [
    pytest.param(api, version, kind, id=f"{api.name}{kind}-v{version}")
    for api in APIS.values()
    if api.by_hand is None
    for version in range(api.min_version, api.max_version + 1)
    for kind in ("Request", "Response")
]

_settings = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _our_class(api: Api, kind: str) -> Any:
    return api.request if kind == "Request" else api.response


@pytest.mark.parametrize(("api", "version", "kind"), _DESCRIBED)
@_settings
@given(data=st.data())
def test_what_we_write_kio_reads_and_what_kio_writes_we_read(
    api: Api, version: int, kind: str, data: st.DataObject
) -> None:
    theirs, cls = kio_class(api, version, kind), _our_class(api, kind)
    plain = data.draw(plain_values(theirs))
    ours = to_ours(cls, plain)
    written = kio_write(theirs, plain)

    assert encode(ours, version) == written
    assert kio_read(theirs, encode(ours, version)) == plain
    assert decode(cls, version, memoryview(bytearray(written))) == (ours, len(written))


@pytest.mark.parametrize(("api", "version", "kind"), _DESCRIBED)
def test_kio_and_we_agree_where_flexible_versions_begin(api: Api, version: int, kind: str) -> None:
    assert kio_class(api, version, kind).__flexible__ == (version >= api.flexible_from)


def test_every_advertised_key_has_kafkas_key_and_name() -> None:
    for key, api in APIS.items():
        theirs = kio_class(api, api.max_version, "Request")
        assert (key, api.key) == (theirs.__api_key__, theirs.__api_key__)


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_every_error_code_has_kafkas_number(code: Code) -> None:
    assert ErrorCode(code.value).name == code.name.lower()
