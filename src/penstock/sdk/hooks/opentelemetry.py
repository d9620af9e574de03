"""Hooks that trace with OpenTelemetry (the extra `penstock[otel]`).

The header `traceparent` (W3C Trace Context) carries a trace from the sender to the handler; any other client can write
and read it. A retry or dead letter continues the trace of its message.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock.sdk.errors import SendError
from penstock.sdk.headers import text_of, without
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.ports import Headers, Outgoing, Receipt

if TYPE_CHECKING:
    from penstock.sdk.message import Message

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
MAX_OPEN = 200_000
"""The largest number of open send spans; beyond, the oldest is ended early."""


class OpenTelemetryHooks(Hooks):
    """Creates a span for each message sent and for each handler call, in the trace of the message."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        """Create the hooks.

        Args:
            tracer: The tracer to use; default: the global tracer named `penstock`.
        """
        self._tracer = tracer or trace.get_tracer("penstock")
        self._propagator = TraceContextTextMapPropagator()
        self._lock = threading.Lock()
        self._open: dict[str, Span] = {}
        """By `traceparent`, which identifies the span and returns with the result."""

    def sending(self, outgoing: Outgoing) -> Outgoing:
        """Start a span, and add its trace to the headers."""
        parent = None if trace.get_current_span().get_span_context().is_valid else self._context(outgoing.headers)
        span = self._tracer.start_span(
            f"send {outgoing.topic}", parent, SpanKind.PRODUCER, attributes=_attributes("send", outgoing.topic)
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span))
        name = carrier.get(TRACEPARENT)
        if name is None:
            # Nothing is traced here: keep the trace that the message came with.
            return outgoing
        self._remember(name, span)
        marks = tuple((header, text.encode()) for header, text in carrier.items())
        return replace(outgoing, headers=(*without(outgoing.headers, (TRACEPARENT, TRACESTATE)), *marks))

    def sent(self, outgoing: Outgoing, receipt: Receipt, seconds: float) -> None:
        """End the span of a message with its partition and offset."""
        span = self._taken(outgoing)
        if span is not None:
            if receipt.partition is not None:
                span.set_attribute("messaging.destination.partition.id", str(receipt.partition))
            if receipt.offset is not None:
                span.set_attribute("messaging.kafka.offset", receipt.offset)
            span.end()

    def failed(self, outgoing: Outgoing, error: SendError, seconds: float) -> None:
        """End the span of a message with an error."""
        span = self._taken(outgoing)
        if span is not None:
            span.set_status(Status(StatusCode.ERROR, str(error)))
            span.end()

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        """Wrap a handler call in a span of the message's trace."""
        with self._tracer.start_as_current_span(
            f"handle {message.topic}",
            self._context(message.headers),
            SpanKind.CONSUMER,
            attributes={**_attributes("process", message.topic), "penstock.attempt": message.attempt},
        ):
            yield

    def _context(self, headers: Headers) -> Context | None:
        found = {name: text for name in (TRACEPARENT, TRACESTATE) if (text := text_of(headers, name)) is not None}
        return self._propagator.extract(found) if found else None

    def _remember(self, name: str, span: Span) -> None:
        with self._lock:
            self._open[name] = span
            oldest = self._open.pop(next(iter(self._open))) if len(self._open) > MAX_OPEN else None
        if oldest is not None:
            oldest.end()

    def _taken(self, outgoing: Outgoing) -> Span | None:
        with self._lock:
            return self._open.pop(text_of(outgoing.headers, TRACEPARENT) or "", None)


def _attributes(operation: str, topic: str) -> dict[str, str]:
    return {
        "messaging.system": "kafka",
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
