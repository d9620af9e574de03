"""Quotas on a real broker: set over the wire, kept to by clients that know of them, held against those that do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaProducer

from conftest import BrokerFactory
from penstock.protocol import apis
from penstock.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntity,
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
)
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from penstock.records.records import Record, build_batch
from support.broker_process import BrokerProcess
from support.cluster import Cluster
from support.waiting import PATIENCE_S, until
from support.wire import PRODUCE, Wire, fetch_request, produce_request
from support.zookeeper import ZooKeeperProcess

QUOTA = 100_000
LOW_QUOTA = 1000
"""With it one batch throttles for minutes: longer than any of these tests takes."""
BATCH = bytes(build_batch([Record(None, b"x" * 400_000)]))
HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1")


@pytest.fixture
def broker(new_broker: BrokerFactory) -> BrokerProcess:
    return new_broker({"quotas.max_throttle_ms": 600_000})


def set_quota(address: tuple[str, int], entity: dict[str, str | None], **limits: float | None) -> None:
    """None takes a limit away."""
    entry = AlterClientQuotasEntry(
        entity=tuple(AlterClientQuotasEntity(entity_type=type_, entity_name=name) for type_, name in entity.items()),
        ops=tuple(
            AlterClientQuotasOperation(key=key, value=value or 0, remove=value is None) for key, value in limits.items()
        ),
    )
    with Wire(address, client_id="operator") as wire:
        answer = wire.ask(apis.ALTER_CLIENT_QUOTAS, 1, AlterClientQuotasRequest(entries=(entry,)))
    assert [each["error_code"] for each in answer["entries"]] == [0], answer


def produce(wire: Wire, topic: str) -> int:
    """Appends a batch; for how long the client is to wait."""
    answer = wire.ask(apis.PRODUCE, PRODUCE, produce_request(topic, BATCH))
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
    throttle_ms: int = answer["throttle_time_ms"]
    return throttle_ms


def until_throttled(ask: Callable[[], int]) -> int:
    """Asks until the answer says for how long to wait."""
    for _ in range(100):
        if throttle_ms := ask():
            return throttle_ms
    raise AssertionError("the client was never throttled")


def test_a_producer_that_ignores_its_quota_is_not_heard_and_others_are(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address, client_id="greedy") as greedy, Wire(broker.address, client_id="other") as other:
        greedy.create_topic(topic, penstock_storage="memory")
        set_quota(broker.address, {"client-id": "greedy"}, producer_byte_rate=LOW_QUOTA)
        throttle_ms = until_throttled(lambda: produce(greedy, topic))
        assert throttle_ms > 300_000
        sent = greedy.send(apis.PRODUCE, PRODUCE, produce_request(topic, BATCH))
        until(lambda: broker.metric("penstock_connections_muted") == 1, "the greedy connection is muted")
        for _ in range(50):
            assert produce(other, topic) == 0
        assert not greedy.has_answer(0.1)
        assert broker.metric("penstock_throttled_requests_total", quota="producer_byte_rate") == 1
        assert broker.metric("penstock_throttle_seconds_total", quota="producer_byte_rate") == throttle_ms / 1000
        # A new connection begins with what is left of the quota: nothing.
        with Wire(broker.address, client_id="greedy") as again:
            assert produce(again, topic) > throttle_ms
        set_quota(broker.address, {"client-id": "greedy"}, producer_byte_rate=None)
        greedy.receive(apis.PRODUCE, PRODUCE, sent)
        assert broker.metric("penstock_connections_muted") == 0


def test_a_throttled_producer_without_acks_loses_nothing(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address, client_id="quiet") as quiet, Wire(broker.address) as other:
        quiet.create_topic(topic, penstock_storage="memory")
        set_quota(broker.address, {"client-id": "quiet"}, producer_byte_rate=LOW_QUOTA)
        for _ in range(4):
            quiet.send(apis.PRODUCE, PRODUCE, produce_request(topic, BATCH, acks=0))
        quiet.socket.shutdown(1)
        until(lambda: broker.metric("penstock_connections_muted") == 1, "the quiet connection is muted")
        assert other.fetch(topic, 0)["high_watermark"] == 1
        set_quota(broker.address, {"client-id": "quiet"}, producer_byte_rate=None)
        until(lambda: other.fetch(topic, 0)["high_watermark"] == 4, "everything is appended")


def test_a_consumer_above_its_quota_gets_empty_answers(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address, client_id="reader") as reader, Wire(broker.address) as other:
        other.create_topic(topic, penstock_storage="memory")
        for _ in range(5):
            assert produce(other, topic) == 0
        set_quota(broker.address, {"user": "ANONYMOUS", "client-id": None}, consumer_byte_rate=QUOTA)
        request = fetch_request([(topic, 0, 0)])

        def fetch() -> int:
            answer = reader.ask(apis.FETCH, 12, request)
            assert bool(answer["responses"]) == (answer["throttle_time_ms"] == 0)
            throttle_ms: int = answer["throttle_time_ms"]
            return throttle_ms

        assert until_throttled(fetch) > 1000
        assert broker.metric("penstock_throttled_requests_total", quota="consumer_byte_rate") == 1
        set_quota(broker.address, {"user": "ANONYMOUS", "client-id": None}, consumer_byte_rate=None)
        assert fetch() == 0


def test_librdkafka_keeps_to_what_it_is_told(broker: BrokerProcess, topic: str) -> None:
    told: list[float] = []
    set_quota(broker.address, {"client-id": "rdkafka"}, producer_byte_rate=20_000)
    producer = Producer(
        {
            "bootstrap.servers": broker.kafka,
            "client.id": "rdkafka",
            "log_level": 0,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    for _ in range(3):
        producer.produce(topic, b"x" * 90_000)
        assert producer.flush(PATIENCE_S) == 0
    until(lambda: producer.poll(0.1) >= 0 and any(told), "the client is told to wait")
    consumer = Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    found: list[bytes | None] = []

    def has_all() -> bool:
        found.extend(each.value() for each in consumer.consume(3, 0.2))
        return len(found) == 3

    until(has_all, "all is read")
    consumer.close()


def test_kafka_python_delivers_everything_within_its_quota(broker: BrokerProcess, topic: str) -> None:
    set_quota(broker.address, {"client-id": None}, producer_byte_rate=30_000, request_percentage=50)
    producer = KafkaProducer(bootstrap_servers=broker.kafka, client_id="kafka-python", batch_size=0, linger_ms=0)
    futures = [producer.send(topic, b"x" * 80_000) for _ in range(5)]
    assert [future.get(PATIENCE_S).offset for future in futures] == list(range(5))
    producer.close()
    assert broker.metric("penstock_throttled_requests_total", quota="producer_byte_rate") > 0


def test_the_time_of_requests_is_limited_for_every_api(broker: BrokerProcess) -> None:
    set_quota(broker.address, {"client-id": "busy"}, request_percentage=0.01)
    with Wire(broker.address, client_id="busy") as busy, Wire(broker.address) as other:
        told = until_throttled(lambda: int(busy.ask(apis.API_VERSIONS, 3, HELLO)["throttle_time_ms"]))
        assert told <= 1000
        assert other.ask(apis.API_VERSIONS, 3, HELLO)["throttle_time_ms"] == 0
    assert broker.metric("penstock_throttled_requests_total", quota="request_percentage") >= 1


def test_connections_of_an_address_above_its_quota_wait(broker: BrokerProcess) -> None:
    set_quota(broker.address, {"ip": "127.0.0.1"}, connection_creation_rate=1)
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.address)) for _ in range(12)]
        until(lambda: broker.metric("penstock_connections_held") >= 1, "a connection waits")
        for wire in wires:
            assert wire.ask(apis.API_VERSIONS, 3, HELLO)["error_code"] == 0
        until(lambda: broker.metric("penstock_connections_held") == 0, "none waits")


def test_the_broker_accepts_no_faster_than_it_is_told(new_broker: BrokerFactory) -> None:
    broker = new_broker({"quotas.connections_per_second": 1})
    began = time.monotonic()
    with ExitStack() as stack:
        for _ in range(13):
            wire = stack.enter_context(Wire(broker.address))
            assert wire.ask(apis.API_VERSIONS, 3, HELLO)["error_code"] == 0
    assert time.monotonic() - began >= 1
    assert broker.metric("penstock_connections_refused_total") == 0


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}") as running:
        yield running


def test_a_quota_holds_on_each_broker_for_itself(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.kafka, "log_level": 0})
    addresses = [cluster.brokers[number].address for number in (1, 2, 3)]
    with Wire(addresses[0]) as wire:
        wire.create_topic(topic, partitions=3)
        leaders = {each["partition_index"]: each["leader_id"] for each in wire.metadata(topic)["partitions"]}
    assert sorted(leaders.values()) == [1, 2, 3]
    set_quota(addresses[2], {"client-id": "greedy"}, producer_byte_rate=QUOTA)
    for partition, leader in leaders.items():
        with Wire(addresses[leader - 1], client_id="greedy") as wire:

            def append(wire: Wire = wire, partition: int = partition) -> int:
                answer = wire.ask(apis.PRODUCE, PRODUCE, produce_request(topic, BATCH, partition=partition))
                throttle_ms: int = answer["throttle_time_ms"]
                return throttle_ms

            # Three batches are more than the quota of ten seconds: none of them counts on another broker.
            assert append() == 0
            assert until_throttled(append) > 0
    producer.produce(topic, b"others go on")
    assert producer.flush(PATIENCE_S) == 0
