"""Whatever one connection sends, the others are served: the worst request of every API, one after the other.

How long the event loop is kept is measured by the broker in CPU time, which other processes do not change. The
requests are made from the descriptions of the messages (`support/worst_requests.py`), for every API that the broker
advertises.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock.broker.requests.dispatch import MAX_ENTRIES
from penstock.protocol import apis
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from penstock.protocol.messages.find_coordinator import GROUP, TRANSACTION, FindCoordinatorRequest
from penstock.records.compression import Codec
from penstock.records.records import Record, build_batch
from support.broker_process import BrokerProcess
from support.wire import Wire, body_of, request_frame
from support.worst_requests import Known, worst_requests

BrokerFactory = Callable[..., BrokerProcess]

MIB = 1 << 20
HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1")
PARTITIONS = 1000
ENTRIES = 40_000
"""Of the largest requests: with the default of `limits.request_entries` the suite would take minutes for them. What is
not done in slices takes in proportion to the entries, so what is asked of the broker is in proportion too.
"""
BUSY_CPU_S = 0.2
"""For so long at most, in CPU time, the event loop may be kept from others by a request with so many entries."""
MEMORY_BYTES = 250 * MIB
PATIENCE_S = 120


@pytest.fixture
def broker(new_broker: BrokerFactory) -> BrokerProcess:
    return new_broker({"limits.request_entries": ENTRIES})


@pytest.fixture
def known(broker: BrokerProcess) -> Known:
    with Wire(broker.address) as wire:
        topic_id = wire.create_topic("t", partitions=PARTITIONS, penstock_storage="memory")
        for kind in (GROUP, TRANSACTION):
            wire.ask(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=kind, coordinator_keys=("g",)))
    return Known("t", topic_id, "g")


class Watched:
    """What a broker's event loop did since the last look."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._before = self._ticks()

    def longest_below(self) -> float:
        """The smallest bound of the histogram that nothing exceeded."""
        now = self._ticks()
        new = {bound: count - self._before[bound] for bound, count in now.items()}
        self._before = now
        return min(bound for bound, count in new.items() if count == new[float("inf")])

    def _ticks(self) -> dict[float, float]:
        return {
            float(dict(labels)["le"]): value
            for (_, labels), value in self._broker.metrics("penstock_event_loop_busy_seconds_bucket").items()
        }


def settle(broker: BrokerProcess) -> None:
    """The broker looks at its loop every 50 ms: two answers to others later it has seen what was before."""
    for _ in range(2):
        time.sleep(0.055)
        with Wire(broker.address, patience_s=PATIENCE_S) as wire:
            assert wire.ask(apis.API_VERSIONS, 3, HELLO)["error_code"] == 0


def advertised(broker: BrokerProcess) -> list[int]:
    with Wire(broker.address) as wire:
        return [found["api_key"] for found in wire.ask(apis.API_VERSIONS, 3, HELLO)["api_keys"]]


def answered_or_closed(wire: Wire) -> str:
    try:
        return f"an answer of {len(wire.frame())} bytes"
    except EOFError:
        return "closed"


def allowed(key: int) -> int:
    """As many entries as a request may have; one less for each list around the longest."""
    return min(ENTRIES, MAX_ENTRIES.get(key, ENTRIES)) - 10


def test_the_worst_request_of_every_api_leaves_the_others_served(broker: BrokerProcess, known: Known) -> None:
    watched, harmful, before = Watched(broker), [], broker.resident_bytes
    keys, asked = advertised(broker), set[int]()
    for request in (request for key in keys for request in worst_requests(key, known, allowed(key))):
        asked.add(request.api.key)
        with Wire(broker.address, patience_s=PATIENCE_S) as wire:
            wire.socket.sendall(request_frame(request.api, request.version, 1, request.body))
            outcome = answered_or_closed(wire)
        settle(broker)
        busy_s, held = watched.longest_below(), broker.resident_bytes - before
        if busy_s > BUSY_CPU_S or held > MEMORY_BYTES:
            harmful.append(f"{request}: {outcome}, the loop was busy for up to {busy_s} s, {held / MIB:.0f} MiB more")
    assert asked == set(keys)
    assert not harmful, "\n".join(harmful)


def test_a_request_with_more_entries_than_allowed_loses_its_connection(broker: BrokerProcess, known: Known) -> None:
    for key in advertised(broker):
        for request in worst_requests(key, known, allowed(key) + 100):
            if request.what == "as it is":
                continue
            with Wire(broker.address, patience_s=PATIENCE_S) as wire:
                wire.socket.sendall(request_frame(request.api, request.version, 1, request.body))
                assert answered_or_closed(wire) == "closed", str(request)
            assert "limits.request_entries" in broker.log.splitlines()[-1], str(request)


def test_tagged_fields_are_counted_too(broker: BrokerProcess) -> None:
    tags = b"\xa0\x8d\x06" + b"\x63\0" * 100_000
    with Wire(broker.address) as wire:
        body = body_of(apis.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False})
        wire.socket.sendall(request_frame(apis.DESCRIBE_CLUSTER, 0, 1, body[:-1] + tags))
        assert wire.is_closed_by_broker()
    assert "tagged fields" in broker.log


def test_many_requests_sent_ahead_leave_the_others_served(broker: BrokerProcess, known: Known) -> None:
    hello = request_frame(apis.API_VERSIONS, 3, 1, body_of(apis.API_VERSIONS, 3, HELLO))
    (metadata, *_) = worst_requests(apis.METADATA.key, known, ENTRIES - 10)
    watched = Watched(broker)
    with Wire(broker.address, patience_s=PATIENCE_S) as wire:
        # The buffer that the large request needs holds very many small ones after it.
        wire.socket.sendall(request_frame(metadata.api, metadata.version, 1, metadata.body))
        wire.frame()
        for _ in range(10):
            wire.socket.sendall(hello * 2000)
            for _ in range(2000):
                wire.frame()
    settle(broker)
    assert watched.longest_below() <= BUSY_CPU_S


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("is_whole", [True, False], ids=["right CRC", "wrong CRC"])
def test_batches_that_unpack_to_very_much_leave_the_others_served(
    broker: BrokerProcess, known: Known, codec: Codec, is_whole: bool
) -> None:
    bomb = build_batch([Record(b"k", bytes(80 * MIB), timestamp_ms=int(time.time() * 1000))], codec=codec)
    if len(bomb) > MIB:  # the topic would not take it
        bomb = build_batch([Record(b"k", bytes(15 * MIB), timestamp_ms=int(time.time() * 1000))], codec=codec)
    if not is_whole:
        bomb[17] ^= 0xFF
    partitions = [{"index": index, "records": bytes(bomb)} for index in range(8)]
    request = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 10_000,
        "topic_data": [{"name": known.topic, "partition_data": partitions}],
    }
    watched, before = Watched(broker), broker.resident_bytes
    with Wire(broker.address, patience_s=PATIENCE_S) as wire:
        wire.ask(apis.PRODUCE, 11, request)
    settle(broker)
    assert watched.longest_below() <= BUSY_CPU_S
    assert broker.resident_bytes - before < MEMORY_BYTES
