"""The topics in a Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping

from penstock.brokerless.redis.server import RedisServer
from penstock.brokerless.store import StoreAwayError, StoreRefusedError
from penstock.brokerless.topic_entries import TopicEntry, new_topic
from penstock.sdk.backend import AS_BACKEND_SAYS, TopicShape
from penstock.sdk.errors import TopicError

RETENTION_MESSAGES = "retention.messages"
DEFAULT_RETENTION_MESSAGES = 1_000_000
_NUMBERS = {RETENTION_MESSAGES: -1}


class RedisTopics:
    """Looks up and creates topics. Thread-safe. Topics are never removed, so what was found once is remembered."""

    def __init__(self, server: RedisServer, default_partitions: int) -> None:
        self._server = server
        self._default_partitions = default_partitions
        self._known: dict[str, TopicEntry] = {}

    def entry(self, topic: str) -> TopicEntry | None:
        """Raises `StoreAwayError`."""
        found = self._known.get(topic)
        if found is None:
            raw = self._server.command("HGET", self._server.key("topics"), topic)
            if raw is not None:
                found = self._known[topic] = _decoded(raw)
        return found

    def all(self) -> dict[str, TopicEntry]:
        """Every topic. Raises `StoreAwayError`."""
        rows = self._server.command("HGETALL", self._server.key("topics"))
        pairs = rows.items() if isinstance(rows, dict) else zip(rows[::2], rows[1::2], strict=True)
        return {name.decode(): _decoded(raw) for name, raw in pairs}

    def shape(self, topic: str) -> TopicShape | None:
        try:
            found = self.entry(topic)
        except (StoreAwayError, StoreRefusedError) as error:
            raise TopicError(f"could not look up topic {topic}: {error}") from None
        return None if found is None else TopicShape(found.partitions, 1)

    def partitions(self, topic: str) -> int:
        shape = self.shape(topic)
        if shape is None:
            raise TopicError(f"topic {topic} does not exist")
        return shape.partitions

    def create(
        self,
        topic: str,
        partitions: int = AS_BACKEND_SAYS,
        replicas: int = AS_BACKEND_SAYS,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        entry = new_topic(topic, partitions, config, _NUMBERS, self._default_partitions)
        if entry.view_of is not None:
            entry = TopicEntry(self.partitions(entry.view_of), entry.settings)
        try:
            raw = json.dumps({"partitions": entry.partitions, "settings": dict(entry.settings)})
            return bool(self._server.command("HSETNX", self._server.key("topics"), topic, raw))
        except (StoreAwayError, StoreRefusedError) as error:
            raise TopicError(f"could not create topic {topic}: {error}") from None


def _decoded(raw: bytes) -> TopicEntry:
    found = json.loads(raw)
    return TopicEntry(found["partitions"], found["settings"])
