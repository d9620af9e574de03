"""Retiring partitions over the wire, and what is in them."""

from __future__ import annotations

from penstock.protocol import apis
from penstock.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from penstock.records.batch import read_header
from support.logs import seen, split
from support.wire import FETCH_BY_NAME, Wire, fetch_request

_TOPIC = 2
_SET, _DELETE = 0, 1


def retire(wire: Wire, topic: str, pairs: str | None) -> tuple[int, str | None]:
    """Sets the retired partitions, or none; gives code and message."""
    return put_setting(wire, topic, "penstock.partitions.retired", pairs)


def put_setting(wire: Wire, topic: str, name: str, value: str | None) -> tuple[int, str | None]:
    config = IncrementalConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)
    resource = IncrementalConfigsResource(resource_type=_TOPIC, resource_name=topic, configs=(config,))
    answer = wire.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources=(resource,)))
    (response,) = answer["responses"]
    return response["error_code"], response["error_message"]


def values_of(wire: Wire, topic: str, partition: int, offset: int = 0) -> list[bytes]:
    """Every record that a read_uncommitted reader is given."""
    found: list[bytes] = []
    while True:
        request = fetch_request([(topic, partition, offset)], FETCH_BY_NAME)
        ((answer,),) = (each["partitions"] for each in wire.ask(apis.FETCH, FETCH_BY_NAME, request)["responses"])
        assert answer["error_code"] == 0, answer
        batches = split(answer["records"] or b"")
        if not batches:
            return found
        for batch in batches:
            header = read_header(batch)
            if not header.is_control:
                found += [record.value or b"" for record in seen(batch) if record.offset >= offset]
            offset = header.next_offset
        if offset >= answer["high_watermark"]:
            return found
