"""Delayed messages in the database of a folder. All changes are made inside a transaction of the caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.brokerless.delay_request import headers_when_delivered, next_due_ms
from penstock.brokerless.files.database import FolderDatabase
from penstock.brokerless.record_codec import messages_of, record_of
from penstock.delay.delay_headers import DelayRequest
from penstock.ids import TopicPartition
from penstock.records.batch import read_header
from penstock.records.records import Record, build_batch
from penstock.sdk.ports import Outgoing, Received
from penstock.sdk.timers import TimerQuery, WaitingMessage


@dataclass(frozen=True, slots=True)
class DueMessage:
    """A delayed message that is due."""

    id: int
    topic_partition: TopicPartition
    due_ms: int
    message: bytes


class FolderTimers:
    """All delayed messages of a folder."""

    def __init__(self, database: FolderDatabase) -> None:
        self._database = database

    def apply(self, db: sqlite3.Connection, tp: TopicPartition, outgoing: Outgoing, request: DelayRequest) -> None:
        """Add a message, replace the one with its name, or cancel."""
        name = request.timer_id if request.cancels is None else request.cancels
        if name is not None:
            db.execute("delete from timers where topic = ? and partition = ? and name = ?", (*tp, name))
        if request.cancels is None:
            # A batch of one record: it has a CRC, and everything that a record has.
            batch = bytes(build_batch([record_of(outgoing, 0)]))
            db.execute(
                "insert into timers (topic, partition, due_ms, name, message) values (?, ?, ?, ?, ?)",
                (*tp, request.due_ms, request.timer_id, batch),
            )

    def count(self) -> int:
        rows = self._database.read("select count(*) from timers")
        number: int = rows[0][0]
        return number

    def next_due_ms(self) -> int | None:
        rows = self._database.read("select due_ms from timers order by due_ms limit 1")
        return rows[0][0] if rows else None

    def due(self, now_ms: int, limit: int) -> list[DueMessage]:
        rows = self._database.read(
            "select id, topic, partition, due_ms, message from timers where due_ms <= ? order by due_ms, id limit ?",
            now_ms,
            limit,
        )
        return [DueMessage(id_, TopicPartition(topic, number), due, raw) for id_, topic, number, due, raw in rows]

    def take(self, db: sqlite3.Connection, due: DueMessage, now_ms: int) -> Record | None:
        """Remove a message, or move it to its next time; the record to append, None if it does not wait any more."""
        message = _message_of(due.message, due.topic_partition)
        following = next_due_ms(message.headers, due.due_ms, now_ms)
        if following is None:
            changed = db.execute("delete from timers where id = ? and due_ms = ?", (due.id, due.due_ms))
        else:
            changed = db.execute(
                "update timers set due_ms = ? where id = ? and due_ms = ?", (following, due.id, due.due_ms)
            )
        if changed.rowcount == 0:
            return None
        return Record(message.key, message.value, headers_when_delivered(message.headers, due.due_ms), now_ms)

    def listed(self, query: TimerQuery) -> list[WaitingMessage]:
        """By due time."""
        conditions: dict[str, object] = {"topic = ?": query.topic}
        if query.timer_id is not None:
            conditions["name = ?"] = query.timer_id.encode()
        else:
            conditions["due_ms >= ?"] = query.from_ms
            if query.until_ms is not None:
                conditions["due_ms < ?"] = query.until_ms
        if query.partition is not None:
            conditions["partition = ?"] = query.partition
        return self._listed(conditions, query.limit)

    def _listed(self, conditions: Mapping[str, object], limit: int) -> list[WaitingMessage]:
        rows = self._database.read(
            f"select topic, partition, due_ms, message from timers where {' and '.join(conditions)}"
            " order by due_ms, id limit ?",
            *conditions.values(),
            limit,
        )
        found = []
        for topic, partition, due_ms, raw in rows:
            message = _message_of(raw, TopicPartition(topic, partition))
            found.append(WaitingMessage(topic, partition, due_ms, message.value, message.key, message.headers))
        return found


def _message_of(raw: bytes, tp: TopicPartition) -> Received:
    return next(messages_of(raw, read_header(raw), tp))
