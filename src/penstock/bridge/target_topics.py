"""Which topics the cluster has. A target is looked up before it is produced to, because that could create it."""

from __future__ import annotations

import threading
from collections.abc import Set as AbstractSet

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from penstock.clock import Clock
from penstock.sdk.errors import TopicError
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.kafka.librdkafka import reason_of

_REQUEST_S = 10.0
_FRESH_MS = 10_000
"""How long a topic that was there is taken to be there."""


class TargetTopics:
    """Thread-safe."""

    def __init__(self, connection: ConnectionSettings, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._known: frozenset[str] = frozenset()
        self._read_ms: float | None = None

    def missing(self, topics: AbstractSet[str]) -> AbstractSet[str]:
        """Those that the cluster does not have now. Raises TopicError if it does not answer."""
        with self._lock:
            is_fresh = self._read_ms is not None and self._clock.monotonic_ms() - self._read_ms <= _FRESH_MS
            if not is_fresh or not topics <= self._known:
                try:
                    # All topics: a request for one by its name may create it.
                    found = self._connected().list_topics(timeout=_REQUEST_S).topics
                except KafkaException as error:
                    raise TopicError(f"could not list the topics: {reason_of(error)}") from None
                self._known = frozenset(found)
                self._read_ms = self._clock.monotonic_ms()
            return topics - self._known

    def topic_id(self, topic: str) -> str:
        """Tells a topic from one of the same name that was deleted. Raises TopicError."""
        try:
            with self._lock:
                asked = self._connected().describe_topics(TopicCollection([topic]), request_timeout=_REQUEST_S)
            return str(asked[topic].result(_REQUEST_S + 1).topic_id)
        except KafkaException as error:
            raise TopicError(f"could not describe topic {topic}: {reason_of(error)}") from None
        except TimeoutError:
            raise TopicError(f"could not describe topic {topic}: no broker answers") from None

    def _connected(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._connection.settings_for())
        return self._admin
