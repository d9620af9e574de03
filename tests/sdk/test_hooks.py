"""Hooks: what they are shown, and that they harm nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import penstock
from conftest import BrokerFactory
from penstock.sdk.topic_names import retry_topic
from support.broker_process import BrokerProcess
from support.foreign import seen_in, values_in
from support.waiting import until


class Notes(penstock.Hooks):
    """Writes down what it is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def sending(self, outgoing: penstock.Outgoing) -> penstock.Outgoing:
        return replace(outgoing, headers=(*outgoing.headers, ("noted", b"yes")))

    def sent(self, outgoing: penstock.Outgoing, receipt: penstock.Receipt, seconds: float) -> None:
        self.seen.append(("sent", outgoing.value, receipt.offset, seconds > 0))

    def failed(self, outgoing: penstock.Outgoing, error: penstock.SendError, seconds: float) -> None:
        self.seen.append(("failed", outgoing.value, type(error)))

    def received(self, message: penstock.Message) -> None:
        self.seen.append(("received", message.value))

    @contextmanager
    def handling(self, message: penstock.Message) -> Iterator[None]:
        self.seen.append(("before", message.value))
        try:
            yield
        finally:
            self.seen.append(("after", message.value))

    def handled(self, message: penstock.Message, seconds: float) -> None:
        self.seen.append(("handled", message.value))

    def retried(self, message: penstock.Message, error: str, after_ms: int) -> None:
        self.seen.append(("retried", message.value, error, after_ms))

    def dead_lettered(self, message: penstock.Message, error: str) -> None:
        self.seen.append(("dead", message.value, error))


class Broken(penstock.Hooks):
    """Fails at everything."""

    def sending(self, outgoing: penstock.Outgoing) -> penstock.Outgoing:
        raise RuntimeError("broken")

    def sent(self, outgoing: penstock.Outgoing, receipt: penstock.Receipt, seconds: float) -> None:
        raise RuntimeError("broken")

    def handling(self, message: penstock.Message) -> Any:
        raise RuntimeError("broken")

    def handled(self, message: penstock.Message, seconds: float) -> None:
        raise RuntimeError("broken")


@contextmanager
def handled(client: penstock.Client, topic: str, values: list[str]) -> Iterator[None]:
    """Messages are sent and handled: `good` at once, `bad` at its second attempt, `dead` never."""
    done: list[str] = []

    @client.subscribe(
        topic,
        group=f"{topic}-group",
        retries=penstock.Retries(first="100ms", attempts=2, jitter=0),
        from_beginning=True,
    )
    def handle(message: penstock.Message) -> None:
        text = (message.value or b"").decode()
        done.append(text)
        if text == "dead" or (text == "bad" and message.attempt == 1):
            raise ValueError("not good")

    for value in values:
        client.send(topic, value, partition=0)
    client.start()
    wanted = len(values) + values.count("bad") + values.count("dead")
    until(lambda: len(done) == wanted, "all was handled")
    yield
    client.stop()


def test_a_hook_sees_messages_sent_and_failed_and_may_add_to_them(broker: BrokerProcess, topic: str) -> None:
    notes = Notes()
    with penstock.Client(broker.kafka, hooks=[notes]) as client:
        client.send(topic, b"good", partition=0)
        with pytest.raises(penstock.SendError):
            client.send(topic, b"bad", partition=99)
        with client.transaction() as transaction:
            transaction.send(topic, b"together", partition=0)
    assert notes.seen == [
        ("sent", b"good", 0, True),
        ("failed", b"bad", penstock.SendError),
        ("sent", b"together", 1, True),
    ]
    assert [each.headers for each in seen_in(broker.kafka, topic)] == [[("noted", b"yes")]] * 2


def test_a_hook_sees_messages_received_handled_retried_and_dead(broker: BrokerProcess, topic: str) -> None:
    notes = Notes()
    with penstock.Client(broker.kafka, hooks=[notes]) as client, handled(client, topic, ["good", "bad", "dead"]):
        until(lambda: any(note[0] == "dead" for note in notes.seen), "one is a dead letter")
        until(lambda: ("handled", b"bad") in notes.seen, "one was handled at its second attempt")
    assert notes.seen.count(("received", b"good")) == 1
    assert ("handled", b"good") in notes.seen
    assert ("retried", b"bad", "ValueError: not good", 100) in notes.seen
    assert ("dead", b"dead", "ValueError: not good") in notes.seen
    before, after = notes.seen.index(("before", b"good")), notes.seen.index(("after", b"good"))
    assert before < after


def test_a_hook_that_fails_changes_nothing(broker: BrokerProcess, topic: str) -> None:
    notes = Notes()
    with penstock.Client(broker.kafka, hooks=[Broken(), notes]) as client, handled(client, topic, ["good"]):
        until(lambda: ("handled", b"good") in notes.seen, "it was handled")
    assert values_in(broker.kafka, topic) == [b"good"]
    assert ("sent", b"good", 0, True) in notes.seen


def test_prometheus_counts_by_topic(broker: BrokerProcess, topic: str) -> None:
    registry = CollectorRegistry()

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"penstock_client_{name}", {"topic": topic})

    hooks = [penstock.PrometheusHooks(registry)]
    with penstock.Client(broker.kafka, hooks=hooks) as client, handled(client, topic, ["good", "bad", "dead"]):
        with pytest.raises(penstock.SendError):
            client.send(topic, b"", partition=99)
        until(lambda: value("dead_lettered_total") == 1, "one is a dead letter")
        until(lambda: value("handled_total") == 2, "two were handled")
    assert value("sent_total") == 3
    assert value("failed_total") == 1
    assert value("send_seconds_count") == 3
    assert value("retried_total") == 2
    assert value("received_total") == 5
    assert value("handle_seconds_count") == 2


def test_a_trace_goes_from_the_sender_through_the_handler_and_its_retry(broker: BrokerProcess, topic: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    def spans(name: str) -> list[ReadableSpan]:
        return [span for span in exporter.get_finished_spans() if span.name == name]

    hooks = [penstock.OpenTelemetryHooks(tracer)]
    with penstock.Client(broker.kafka, hooks=hooks) as client:
        with tracer.start_as_current_span("order"), handled(client, topic, ["bad"]):
            until(lambda: len(spans(f"handle {topic}")) == 2, "both attempts are traced")
        (order,) = spans("order")
        (sent,) = spans(f"send {topic}")
        first, second = sorted(spans(f"handle {topic}"), key=lambda span: span.start_time or 0)
        (retry,) = spans(f"send {retry_topic(f'{topic}-group', topic)}")
    ids = {span.context.trace_id for span in (order, sent, first, retry, second) if span.context is not None}
    assert len(ids) == 1
    assert sent.context is not None and order.context is not None and retry.context is not None
    assert sent.parent is not None and sent.parent.span_id == order.context.span_id
    assert first.parent is not None and first.parent.span_id == sent.context.span_id
    assert second.parent is not None and second.parent.span_id == retry.context.span_id
    assert not first.status.is_ok
    (seen,) = seen_in(broker.kafka, topic)
    marked = dict(seen.headers)["traceparent"] or b""
    assert marked.startswith(f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}-".encode())


def test_a_spilled_message_keeps_its_trace(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    provider = TracerProvider()
    sending = penstock.Sending(tries=1, try_timeout="500ms", when_away=penstock.Spill(tmp_path))
    broker = new_broker()
    hooks = [penstock.OpenTelemetryHooks(provider.get_tracer("test"))]
    with penstock.Client(broker.kafka, sending=sending, hooks=hooks) as client:
        broker.kill()
        assert client.send(topic, b"value").is_spilled
        broker.start()
        assert client.flush(60)
    assert b"traceparent" in [name.encode() for name, _ in seen_in(broker.kafka, topic)[0].headers]
