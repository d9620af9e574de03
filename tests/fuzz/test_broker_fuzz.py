"""Hostile frames and batches against a live broker: it stays up, expects everything, and serves the next client.

Examples are the same in every run. Requests are valid ones with random content, the same mutated, and noise; batches
are valid ones mutated behind a CRC that is right again.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.protocol import apis
from penstock.protocol.apis import APIS, Api
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from penstock.records.compression import Codec
from penstock.records.records import Record, build_batch
from support.broker_process import BrokerProcess
from support.wire import Wire, request_frame
from unit.protocol.kio_oracle import kio_class, kio_write, plain_values

PAIRS = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in APIS.values()
    for version in sorted({max(api.min_version, 3 if api is apis.PRODUCE else 0), api.max_version})
]
HUGE = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x07",
    b"\x7f\xff",
    b"\xff" * 8,
]
TOPICS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "recoded": {"compression_type": "zstd"},
    "in-memory": {"penstock_storage": "memory"},
}
ANSWER_S = 0.05
HELLO = ApiVersionsRequest(client_software_name="fuzz", client_software_version="1")


def bounded(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that only this file torments; whatever it was sent, it must have expected it and still work."""
    process = BrokerProcess(
        tmp_path_factory.mktemp("fuzzed"), {"limits.partitions": 500, "limits.partitions_per_topic": 20}
    )
    try:
        process.start()
        yield process
        assert process.is_alive, process.log_tail
        assert_proper_clients_are_served(process)
        assert "Traceback" not in process.log, process.log_tail
        assert process.stop() == 0, process.log_tail
        assert "Traceback" not in process.log, process.log_tail
    finally:
        process.kill()


def assert_proper_clients_are_served(broker: BrokerProcess) -> None:
    topic = f"proper-{time.monotonic_ns()}"
    producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True})
    for number in range(100):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while len(found) < 100 and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(100, timeout=0.5)]
    consumer.close()
    assert found == [b"%d" % number for number in range(100)]


def torment(broker: BrokerProcess, sent: bytes, wait_s: float) -> None:
    """Sends bytes, waits a little for what they lead to, leaves, and sees whether the broker still answers."""
    with Wire(broker.address) as wire:
        wire.socket.sendall(sent)
        if wait_s:
            wire.is_closed_by_broker(wait_s)
    with Wire(broker.address) as wire:
        assert wire.ask(apis.API_VERSIONS, 3, HELLO)["error_code"] == 0


@st.composite
def mutated(draw: st.DrawFn, valid: bytes, start: int = 0) -> bytes:
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(min(start, len(data)), len(data)))
        match draw(st.sampled_from(["cut", "overwrite", "insert", "blow up", "flip"])):
            case "cut":
                del data[position:]
            case "overwrite":
                data[position : position + 4] = draw(st.binary(min_size=4, max_size=4))
            case "insert":
                data[position:position] = draw(st.binary(max_size=8))
            case "blow up":
                huge = draw(st.sampled_from(HUGE))
                data[position : position + len(huge)] = huge
            case "flip" if position < len(data):
                data[position] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


@pytest.mark.parametrize(("api", "version"), PAIRS)
@bounded(12)
@given(data=st.data())
def test_requests_of_random_content_are_answered_or_refused(
    target: BrokerProcess, api: Api, version: int, data: st.DataObject
) -> None:
    theirs = kio_class(api, version, "Request")
    body = kio_write(theirs, data.draw(plain_values(theirs)))
    torment(target, request_frame(api, version, 1, body), data.draw(st.sampled_from([0.0, ANSWER_S])))


@pytest.mark.parametrize(("api", "version"), PAIRS)
@bounded(12)
@given(data=st.data())
def test_mutated_requests_are_answered_or_refused(
    target: BrokerProcess, api: Api, version: int, data: st.DataObject
) -> None:
    theirs = kio_class(api, version, "Request")
    valid = request_frame(api, version, 1, kio_write(theirs, data.draw(plain_values(theirs))))
    payload = data.draw(mutated(valid[4:]))
    torment(target, struct.pack(">i", len(payload)) + payload, data.draw(st.sampled_from([0.0, ANSWER_S])))


@bounded(150)
@given(sent=st.binary(min_size=1, max_size=300), framed=st.booleans())
def test_noise_is_refused(target: BrokerProcess, sent: bytes, framed: bool) -> None:
    torment(target, struct.pack(">i", len(sent)) + sent if framed else sent, 0.0)


@st.composite
def hostile_batch(draw: st.DrawFn) -> bytes:
    """A batch changed behind its fixed fields and given a right length and CRC again."""
    now_ms = int(time.time() * 1000)
    codec = draw(st.sampled_from(list(Codec)))
    keys = draw(st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=5))
    values = [Record(key, b"value " * 20, (("name", b"1"),), now_ms) for key in keys]
    valid = bytes(build_batch(values, codec=codec))
    batch = bytearray(draw(mutated(valid, start=draw(st.sampled_from([21, 57, 61])))))
    if len(batch) >= 21:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


@pytest.mark.parametrize("kind", TOPICS)
@bounded(80)
@given(batch=hostile_batch())
def test_hostile_batches_are_stored_or_refused(target: BrokerProcess, kind: str, batch: bytes) -> None:
    with Wire(target.address) as wire:
        if wire.metadata(f"fuzzed-{kind}")["error_code"]:
            wire.create_topic(f"fuzzed-{kind}", **TOPICS[kind])
        # -1 is the code for what the broker did not expect.
        assert wire.produce(f"fuzzed-{kind}", batch)["error_code"] != -1


def test_what_hostile_batches_left_survives_a_restart(target: BrokerProcess) -> None:
    with Wire(target.address) as wire:
        ends = {kind: wire.fetch(f"fuzzed-{kind}", 0)["high_watermark"] for kind in TOPICS}
    target.kill()
    target.restart()
    with Wire(target.address) as wire:
        after = {kind: wire.fetch(f"fuzzed-{kind}", 0)["high_watermark"] for kind in TOPICS if kind != "in-memory"}
        assert after == {kind: end for kind, end in ends.items() if kind != "in-memory"}
        for kind in after:
            assert wire.produce(f"fuzzed-{kind}", bytes(build_batch([Record(b"k", b"v")])))["error_code"] == 0
