"""What the chat server asks the database itself: who is in which room, and messages by room.

Messages are rows of the tables that the broker keeps, `chat_0` to `chat_3`. Nothing but the broker writes there.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

TOPIC = "chat"
PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class ChatMessage:
    partition: int
    id: int
    """Rises within a partition, and so within a room: a client can drop what it has shown before."""
    room: str
    text: str

    def __str__(self) -> str:
        return f"{self.room} {self.id} {self.text}"


class Store:
    """A connection for each question: easy, and quick enough for a company's chat."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._ask(
            "CREATE TABLE IF NOT EXISTS room_member (room VARCHAR(40), member VARCHAR(40), PRIMARY KEY (member, room))"
            " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        )

    def join(self, member: str, room: str) -> None:
        self._ask("INSERT IGNORE INTO room_member (member, room) VALUES (%s, %s)", member, room)

    def leave(self, member: str, room: str) -> None:
        self._ask("DELETE FROM room_member WHERE member = %s AND room = %s", member, room)

    def rooms_of(self, member: str) -> set[str]:
        return {room for (room,) in self._ask("SELECT room FROM room_member WHERE member = %s", member)}

    def history(self, room: str, count: int = 20) -> list[ChatMessage]:
        """The last messages of a room, from the one table that has them: `biz_id` has an index."""
        found: list[ChatMessage] = []
        for partition in range(PARTITIONS):
            rows = self._ask(
                f"SELECT id, biz_id, CONVERT(body USING utf8mb4) FROM {TOPIC}_{partition}"
                " WHERE biz_id = %s ORDER BY id DESC LIMIT %s",
                room,
                count,
            )
            found += [ChatMessage(partition, *row) for row in reversed(rows)]
        return found

    def unread(self, rooms: Collection[str], read: Mapping[int, int]) -> tuple[list[ChatMessage], dict[int, int]]:
        """What is behind the committed offsets, and how far that goes in each partition."""
        found: list[ChatMessage] = []
        ends: dict[int, int] = {}
        for partition, after in read.items():
            table = f"{TOPIC}_{partition}"
            ((end,),) = self._ask(f"SELECT COALESCE(MAX(id), 0) FROM {table}")
            ends[partition] = max(end, after)
            if rooms:
                rows = self._ask(
                    f"SELECT id, biz_id, CONVERT(body USING utf8mb4) FROM {table}"
                    " WHERE id > %s AND id <= %s AND biz_id IN %s ORDER BY id",
                    after,
                    end,
                    tuple(rooms),
                )
                found += [ChatMessage(partition, *row) for row in rows]
        return found, ends

    def _ask(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        at = self._url
        try:
            with (
                pymysql.connect(
                    host=at.hostname,
                    port=at.port or 3306,
                    user=unquote(at.username or ""),
                    password=unquote(at.password or ""),
                    database=at.path.lstrip("/"),
                    autocommit=True,
                ) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(statement, params)
                return list(cursor.fetchall())
        except pymysql.OperationalError as error:
            raise ConnectionError(f"the database does not answer: {error}") from error
