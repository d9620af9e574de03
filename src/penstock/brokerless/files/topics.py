"""The topics of a folder."""

from __future__ import annotations

import json

from penstock.brokerless.files.database import FolderDatabase
from penstock.brokerless.topic_catalogue import TopicCatalogue
from penstock.brokerless.topic_entries import TopicEntry

SEGMENT_BYTES = "segment.bytes"


class FolderTopics(TopicCatalogue):
    """Rows of the folder's database."""

    def __init__(self, database: FolderDatabase, default_partitions: int) -> None:
        super().__init__(default_partitions)
        self._database = database

    def all(self) -> dict[str, TopicEntry]:
        rows = self._database.read("select name, partitions, settings from topics")
        return {name: TopicEntry(partitions, json.loads(settings)) for name, partitions, settings in rows}

    def _find(self, topic: str) -> TopicEntry | None:
        rows = self._database.read("select partitions, settings from topics where name = ?", topic)
        return TopicEntry(rows[0][0], json.loads(rows[0][1])) if rows else None

    def _insert(self, topic: str, entry: TopicEntry) -> bool:
        with self._database.writing() as db:
            created = db.execute(
                "insert or ignore into topics values (?, ?, ?)",
                (topic, entry.partitions, json.dumps(dict(entry.settings))),
            )
            return created.rowcount == 1
