"""Hooks that count messages in Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from penstock.sdk.errors import SendError
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.ports import Outgoing, Receipt

if TYPE_CHECKING:
    from penstock.sdk.message import Message

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class PrometheusHooks(Hooks):
    """Counts messages by topic, in metrics named `penstock_client_...`.

    Create one per registry: metric names must be unique in a registry.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register the metrics.

        Args:
            registry: The registry to use; default: the global one of prometheus_client.
        """
        self.registry = registry
        """The registry that has the metrics."""

        def counter(name: str, what: str) -> Counter:
            return Counter(f"penstock_client_{name}", what, ["topic"], registry=registry)

        def histogram(name: str, what: str) -> Histogram:
            return Histogram(f"penstock_client_{name}", what, ["topic"], registry=registry, buckets=_SECONDS)

        self._sent = counter("sent", "Messages that became durable.")
        self._failed = counter("failed", "Messages that were not sent.")
        self._send_seconds = histogram("send_seconds", "Time from the call until a message was durable.")
        self._received = counter("received", "Messages received from a broker.")
        self._handled = counter("handled", "Messages that were acknowledged.")
        self._handle_seconds = histogram("handle_seconds", "Duration of handlers that acknowledged their message.")
        self._retried = counter("retried", "Messages that are delivered again.")
        self._dead_lettered = counter("dead_lettered", "Messages that became dead letters.")

    def sent(self, outgoing: Outgoing, receipt: Receipt, seconds: float) -> None:
        """Count a durable message and its duration."""
        self._sent.labels(outgoing.topic).inc()
        self._send_seconds.labels(outgoing.topic).observe(seconds)

    def failed(self, outgoing: Outgoing, error: SendError, seconds: float) -> None:
        """Count a message that was not sent."""
        self._failed.labels(outgoing.topic).inc()

    def received(self, message: Message) -> None:
        """Count a message from a broker."""
        self._received.labels(message.topic).inc()

    def handled(self, message: Message, seconds: float) -> None:
        """Count an acknowledged message and the duration of its handler."""
        self._handled.labels(message.topic).inc()
        self._handle_seconds.labels(message.topic).observe(seconds)

    def retried(self, message: Message, error: str, after_ms: int) -> None:
        """Count a message that is delivered again."""
        self._retried.labels(message.topic).inc()

    def dead_lettered(self, message: Message, error: str) -> None:
        """Count a dead letter."""
        self._dead_lettered.labels(message.topic).inc()
