"""What monitoring sees: health, readiness and metrics of a real broker."""

from __future__ import annotations

import socket
import urllib.error
from collections.abc import Callable

import pytest

from penstock.protocol import apis
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest
from support.broker_process import BrokerProcess
from support.waiting import until
from support.wire import Wire, batch_of, fetch_request

BrokerFactory = Callable[..., BrokerProcess]


def test_a_running_broker_is_healthy_and_ready(broker: BrokerProcess) -> None:
    health = broker.get_json("/health")
    assert (health["status"], health["kafka"]) == ("up", broker.kafka)
    assert broker.get_json("/ready")["status"] == "ready"
    assert "/metrics" in broker.get("/")


def test_pages_that_are_not_there_are_not_found(broker: BrokerProcess) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        broker.get("/nothing")
    assert error.value.code == 404
    error.value.close()


def test_a_stopped_broker_answers_nothing(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    broker.stop()
    with pytest.raises(OSError):
        broker.get("/health")


def test_bytes_that_are_no_http_do_not_harm_the_pages(broker: BrokerProcess) -> None:
    host, _, port = broker.http.rpartition(":")
    for sent in (b"\0\0\0\x0e\0\x12\0\0", b"GET\r\n\r\n", b"A" * 100_000):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            try:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass  # cut off while it was still talking
    assert broker.get_json("/ready")["status"] == "ready"


def test_metrics_count_requests_bytes_and_errors(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        before = broker.metrics()
        for _ in range(10):
            wire.produce(topic, batch_of(b"x" * 1000))
        wire.fetch(topic, 0)
        wire.fetch("no-such-topic", 0)
        wire.produce("no-such-topic", batch_of(b"x"))
        after = broker.metrics()

    def moved(name: str, **labels: str) -> float:
        key = name, tuple(sorted(labels.items()))
        return after[key] - before[key]

    assert moved("penstock_requests_total", api="Produce") == 11
    assert moved("penstock_requests_total", api="Fetch") == 2
    assert moved("penstock_request_errors_total", api="Produce") == 1
    assert moved("penstock_request_errors_total", api="Fetch") == 1
    assert moved("penstock_request_seconds_count", api="Produce") == 11
    assert moved("penstock_request_seconds_sum", api="Produce") > 0
    assert moved("penstock_request_bytes_total", api="Produce") > 10_000
    assert moved("penstock_response_bytes_total", api="Fetch") > 10_000
    assert moved("penstock_log_end_offset", topic=topic, partition="0") == 10
    assert moved("penstock_log_size_bytes", topic=topic, partition="0") > 10_000
    assert moved("penstock_log_start_offset", topic=topic, partition="0") == 0


def test_metrics_show_what_is_open_now(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker({"limits.connections": 2})
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"x"))
        with Wire(broker.address) as reader:
            reader.send(apis.FETCH, 12, fetch_request([(topic, 0, 1)], max_wait_ms=100_000))
            until(lambda: broker.metric("penstock_parked_fetches") == 1, "the fetch is parked")
            assert broker.metric("penstock_connections") == 2
            assert broker.metric("penstock_open_files") >= 1
            with Wire(broker.address) as third:
                assert third.is_closed_by_broker()
        until(lambda: broker.metric("penstock_parked_fetches") == 0, "the fetch is dropped")
        until(lambda: broker.metric("penstock_connections") == 1, "one connection is left")
        assert broker.metric("penstock_connections_accepted_total") == 2
        assert broker.metric("penstock_connections_refused_total") == 1
        assert broker.metric("penstock_request_bytes_held") == 0
        assert broker.metric("penstock_unwritten_bytes") >= 0
        assert broker.metric("process_resident_memory_bytes") > 1_000_000

        wire.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=(topic,), timeout_ms=1000))
        assert not any(("topic", topic) in labels for _, labels in broker.metrics())


def test_metrics_hold_an_entry_for_every_api(broker: BrokerProcess) -> None:
    counted = {dict(labels)["api"] for name, labels in broker.metrics() if name == "penstock_requests_total"}
    assert {api.name for api in apis.APIS.values()} <= counted
