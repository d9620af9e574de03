"""The topics of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping

from penstock.brokerless.files.database import FolderDatabase
from penstock.brokerless.store import StoreAwayError, StoreRefusedError
from penstock.brokerless.topic_entries import TopicEntry, new_topic
from penstock.sdk.backend import AS_BACKEND_SAYS, TopicShape
from penstock.sdk.errors import TopicError

SEGMENT_BYTES = "segment.bytes"


class FolderTopics:
    """Looks up and creates topics. Thread-safe. Topics are never removed, so what was found once is remembered."""

    def __init__(self, database: FolderDatabase, default_partitions: int) -> None:
        self._database = database
        self._default_partitions = default_partitions
        self._known: dict[str, TopicEntry] = {}

    def entry(self, topic: str) -> TopicEntry | None:
        """Raises `StoreAwayError`."""
        found = self._known.get(topic)
        if found is None:
            rows = self._database.read("select partitions, settings from topics where name = ?", topic)
            if rows:
                found = self._known[topic] = TopicEntry(rows[0][0], json.loads(rows[0][1]))
        return found

    def all(self) -> dict[str, TopicEntry]:
        """Every topic. Raises `StoreAwayError`."""
        rows = self._database.read("select name, partitions, settings from topics")
        return {name: TopicEntry(partitions, json.loads(settings)) for name, partitions, settings in rows}

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
        entry = new_topic(topic, partitions, config, {}, self._default_partitions)
        if entry.view_of is not None:
            entry = TopicEntry(self.partitions(entry.view_of), entry.settings)
        try:
            with self._database.writing() as db:
                created = db.execute(
                    "insert or ignore into topics values (?, ?, ?)",
                    (topic, entry.partitions, json.dumps(dict(entry.settings))),
                )
                return created.rowcount == 1
        except (StoreAwayError, StoreRefusedError) as error:
            raise TopicError(f"could not create topic {topic}: {error}") from None
