"""Hooks that count in Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from penstock.sdk.errors import SendError
from penstock.sdk.hooks import Hooks
from penstock.sdk.ports import Outgoing, Receipt

if TYPE_CHECKING:
    from penstock.sdk.message import Message

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class PrometheusHooks(Hooks):
    """Metrics by topic, named `penstock_client_...`, in a registry of yours or in Prometheus's own.

    One for each registry: a second one would have the same names.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, what: str) -> Counter:
            return Counter(f"penstock_client_{name}", what, ["topic"], registry=registry)

        def histogram(name: str, what: str) -> Histogram:
            return Histogram(f"penstock_client_{name}", what, ["topic"], registry=registry, buckets=_SECONDS)

        self._sent = counter("sent", "Messages that became durable.")
        self._failed = counter("failed", "Messages that were not sent.")
        self._send_seconds = histogram("send_seconds", "From the call until a message was durable.")
        self._received = counter("received", "Messages that came from a broker.")
        self._handled = counter("handled", "Messages that were acknowledged.")
        self._handle_seconds = histogram("handle_seconds", "How long handlers took for what they acknowledged.")
        self._retried = counter("retried", "Messages that come again later.")
        self._dead_lettered = counter("dead_lettered", "Messages that went to the dead letters.")

    def sent(self, outgoing: Outgoing, receipt: Receipt, seconds: float) -> None:
        self._sent.labels(outgoing.topic).inc()
        self._send_seconds.labels(outgoing.topic).observe(seconds)

    def failed(self, outgoing: Outgoing, error: SendError, seconds: float) -> None:
        self._failed.labels(outgoing.topic).inc()

    def received(self, message: Message) -> None:
        self._received.labels(message.topic).inc()

    def handled(self, message: Message, seconds: float) -> None:
        self._handled.labels(message.topic).inc()
        self._handle_seconds.labels(message.topic).observe(seconds)

    def retried(self, message: Message, error: str, after_ms: int) -> None:
        self._retried.labels(message.topic).inc()

    def dead_lettered(self, message: Message, error: str) -> None:
        self._dead_lettered.labels(message.topic).inc()
