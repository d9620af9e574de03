"""Looks up and creates topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.sdk.backend import AS_BACKEND_SAYS, Topics, TopicShape
from penstock.sdk.errors import InvalidInputError, TopicError
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.kafka.librdkafka import error_of, reason_of

_REQUEST_TIMEOUT_S = 30.0
_LOOK_S = 0.05


class TopicAdmin(Topics):
    """Looks up and creates topics; connects when first used. Thread-safe."""

    def __init__(self, connection: ConnectionSettings) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None

    def shape(self, topic: str) -> TopicShape | None:
        """None if the topic does not exist. Raises `TopicError`."""
        try:
            # List all topics: a lookup by name creates the topic where brokers create topics on demand.
            found = self._connected().list_topics(timeout=_REQUEST_TIMEOUT_S).topics.get(topic)
        except KafkaException as error:
            raise TopicError(f"could not look up topic {topic}: {reason_of(error)}") from None
        if found is None:
            return None
        if found.error is not None:
            raise TopicError(f"could not look up topic {topic}: {found.error.str()}")
        return TopicShape(
            len(found.partitions), max((len(each.replicas) for each in found.partitions.values()), default=1)
        )

    def create(
        self,
        topic: str,
        partitions: int = AS_BACKEND_SAYS,
        replicas: int = AS_BACKEND_SAYS,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a topic; False if it exists, which leaves it unchanged. Raises `TopicError` or `InvalidInputError`.

        Returns when the broker that this client asks knows the topic: Kafka's controller answers before the other
        brokers have heard of it.
        """
        is_new = self._created(topic, partitions, replicas, config)
        until_s = time.monotonic() + _REQUEST_TIMEOUT_S
        while self.shape(topic) is None:
            if time.monotonic() > until_s:
                raise TopicError(f"topic {topic} was created, but brokers do not show it; try again")
            time.sleep(_LOOK_S)
        return is_new

    def _created(self, topic: str, partitions: int, replicas: int, config: Mapping[str, str] | None) -> bool:
        wanted = NewTopic(topic, partitions, replicas, config=dict(config or {}))
        asked: dict[str, Any] = self._connected().create_topics([wanted], request_timeout=_REQUEST_TIMEOUT_S)
        try:
            asked[topic].result(_REQUEST_TIMEOUT_S + 1)
        except KafkaException as error:
            if error_of(error).code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            if error_of(error).code() == KafkaError.INVALID_CONFIG:
                raise InvalidInputError(f"could not create topic {topic}: {reason_of(error)}") from None
            raise TopicError(f"could not create topic {topic}: {reason_of(error)}") from None
        except TimeoutError:
            raise TopicError(f"could not create topic {topic}: no broker answers") from None
        return True

    def _connected(self) -> AdminClient:
        with self._lock:
            if self._admin is None:
                self._admin = AdminClient(self._connection.settings_for())
            return self._admin
