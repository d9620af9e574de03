"""Topics as a client sees and makes them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.sdk.access import Access
from penstock.sdk.errors import TopicError
from penstock.sdk.failures import error_of, reason_of

_ANSWER_S = 30.0
_AS_BROKERS_SAY = -1


@dataclass(frozen=True, slots=True)
class TopicShape:
    """How large a topic is."""

    partitions: int
    replicas: int


class Topics:
    """Asks and makes; connects when it is first needed. Any thread may."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None

    def shape(self, topic: str) -> TopicShape | None:
        """None if there is no such topic."""
        try:
            # All topics: to ask for one by name would make it, where the broker makes topics on demand.
            found = self._connected().list_topics(timeout=_ANSWER_S).topics.get(topic)
        except KafkaException as error:
            raise TopicError(f"topic {topic} could not be looked up: {reason_of(error)}") from None
        if found is None:
            return None
        if found.error is not None:
            raise TopicError(f"topic {topic} could not be looked up: {found.error.str()}")
        return TopicShape(
            len(found.partitions), max((len(each.replicas) for each in found.partitions.values()), default=1)
        )

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has that must be there."""
        shape = self.shape(topic)
        if shape is None:
            raise TopicError(f"there is no topic {topic}")
        return shape.partitions

    def make(
        self,
        topic: str,
        partitions: int = _AS_BROKERS_SAY,
        replicas: int = _AS_BROKERS_SAY,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        """Makes a topic; false if there is one already, which stays as it is."""
        wanted = NewTopic(topic, partitions, replicas, config=dict(config or {}))
        asked: dict[str, Any] = self._connected().create_topics([wanted], request_timeout=_ANSWER_S)
        try:
            asked[topic].result(_ANSWER_S + 1)
        except KafkaException as error:
            if error_of(error).code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise TopicError(f"topic {topic} could not be made: {reason_of(error)}") from None
        except TimeoutError:
            raise TopicError(f"topic {topic} could not be made: no broker answers") from None
        return True

    def _connected(self) -> AdminClient:
        with self._lock:
            if self._admin is None:
                self._admin = AdminClient(self._access.settings_for())
            return self._admin
