"""What the broker writes to standard error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from penstock.protocol import apis
from support.broker_process import BrokerProcess
from support.waiting import until
from support.wire import Wire, batch_of, produce_request, request_frame

BrokerFactory = Callable[..., BrokerProcess]

TEXT_LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) +\S+  .+$")


def provoke(broker: BrokerProcess, topic: str) -> None:
    """Traffic, and everything that makes the broker complain about a client."""
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"x"))
    with Wire(broker.address) as wire:
        wire.socket.sendall(b"\xff" * 100)
        assert wire.is_closed_by_broker()
    with Wire(broker.address) as wire:
        # A name that would forge a line of the log.
        request = produce_request('no\n2026-01-01T00:00:00.000Z INFO  forged  "line', batch_of(b"x"), acks=0)
        wire.send(apis.PRODUCE, 11, request)
        assert wire.is_closed_by_broker()
    with Wire(broker.address) as wire:
        wire.socket.sendall(request_frame(apis.METADATA, 12, 1, b"\xff\xff\xff\xff\xff\xff"))
        assert wire.is_closed_by_broker()


def test_every_line_of_the_json_log_is_an_event(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker({"logging.format": "json", "logging.level": "debug"})
    provoke(broker, topic)
    assert broker.stop() == 0
    events = [json.loads(line) for line in broker.log.splitlines()]
    assert all({"time", "level", "room", "message"} <= event.keys() for event in events)
    messages = [event["message"] for event in events]
    assert "broker is ready" in messages
    assert messages[-1] == "stopped"
    (ready,) = (event for event in events if event["message"] == "broker is ready")
    assert (ready["listen"], ready["http"]) == (f"PLAINTEXT://{broker.kafka}", broker.http)
    assert sum(message == "connection closed" for message in messages) == 3


def test_every_line_of_the_text_log_is_an_event(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    provoke(broker, topic)
    assert broker.stop() == 0
    lines = broker.log.splitlines()
    assert [line for line in lines if not TEXT_LINE.match(line)] == []
    assert not any(" forged " in line.split('"')[0] for line in lines)


def test_the_level_decides_what_is_written(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker({"logging.level": "error"})
    provoke(broker, topic)
    assert broker.stop() == 0
    assert broker.log == ""


def test_a_start_after_a_crash_is_told(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    provoke(broker, topic)
    broker.kill()
    broker.restart()
    until(lambda: broker.log.count("broker is ready") == 2, "the second start is in the log")
