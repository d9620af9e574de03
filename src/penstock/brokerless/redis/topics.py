"""The topics in a Redis."""

from __future__ import annotations

import json

from penstock.brokerless.redis.server import RedisServer
from penstock.brokerless.topic_catalogue import TopicCatalogue
from penstock.brokerless.topic_entries import TopicEntry

RETENTION_MESSAGES = "retention.messages"
DEFAULT_RETENTION_MESSAGES = 1_000_000


class RedisTopics(TopicCatalogue):
    """Fields of a hash."""

    def __init__(self, server: RedisServer, default_partitions: int) -> None:
        super().__init__(default_partitions, {RETENTION_MESSAGES: -1})
        self._server = server

    def all(self) -> dict[str, TopicEntry]:
        rows = self._server.command("HGETALL", self._server.key("topics"))
        pairs = rows.items() if isinstance(rows, dict) else zip(rows[::2], rows[1::2], strict=True)
        return {name.decode(): _decoded(raw) for name, raw in pairs}

    def _find(self, topic: str) -> TopicEntry | None:
        raw = self._server.command("HGET", self._server.key("topics"), topic)
        return None if raw is None else _decoded(raw)

    def _insert(self, topic: str, entry: TopicEntry) -> bool:
        raw = json.dumps({"partitions": entry.partitions, "settings": dict(entry.settings)})
        return bool(self._server.command("HSETNX", self._server.key("topics"), topic, raw))


def _decoded(raw: bytes) -> TopicEntry:
    found = json.loads(raw)
    return TopicEntry(found["partitions"], found["settings"])
