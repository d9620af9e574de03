"""Who wrote what: the producer's id and epoch of every record, as the batches in the log say."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.protocol import apis
from penstock.protocol.messages.metadata import MetadataRequest
from penstock.records.batch import read_header
from support.access import parse
from support.sasl import connect
from support.wire import FETCH_BY_NAME, Wire, fetch_request

Origin = tuple[int, int]
"""Producer id and epoch."""


def origins(bootstrap: str, topic: str, partitions: Iterable[int]) -> dict[tuple[int, int], Origin]:
    """By partition and offset."""
    servers, who = parse(bootstrap)
    with connect(who, _address(servers.split(",")[0])) as wire:
        answer = wire.ask(apis.METADATA, 12, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    brokers = {each["node_id"]: (each["host"], each["port"]) for each in answer["brokers"]}
    (described,) = (each for each in answer["topics"] if each["name"] == topic)
    leaders = {each["partition_index"]: each["leader_id"] for each in described["partitions"]}
    found: dict[tuple[int, int], Origin] = {}
    for partition in partitions:
        with connect(who, brokers[leaders[partition]]) as wire:
            found |= _origins(wire, topic, partition)
    return found


def _origins(wire: Wire, topic: str, partition: int) -> dict[tuple[int, int], Origin]:
    found: dict[tuple[int, int], Origin] = {}
    offset = 0
    while True:
        answer = wire.ask(apis.FETCH, FETCH_BY_NAME, fetch_request([(topic, partition, offset)]))
        ((result,),) = (response["partitions"] for response in answer["responses"])
        assert result["error_code"] == 0, result
        records, position = result["records"] or b"", 0
        if not records:
            return found
        while position < len(records):
            header = read_header(records, position)
            for each in range(header.base_offset, header.next_offset):
                found[partition, each] = (header.producer_id, header.producer_epoch)
            position += header.size
            offset = header.next_offset


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
