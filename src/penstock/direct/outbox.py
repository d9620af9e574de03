"""`penstock.direct.outbox`: messages in the application's own transaction."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import TracebackType
from typing import Self, Unpack

from penstock.brokerless.sql.appends import PartitionRef
from penstock.brokerless.sql.link import NAMESPACE
from penstock.brokerless.sql.message_appends import append_messages
from penstock.brokerless.store import StoreRefusedError
from penstock.cluster import nodes
from penstock.cluster.coordination.sql_tree import SqlTree
from penstock.cluster.decisions.settings import effective_config
from penstock.cluster.metadata import DEFAULT_DATABASE
from penstock.ids import TopicPartition
from penstock.sdk.errors import InvalidInputError, SendError, TopicError
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.outgoing_message import SendOptions, Value, compose
from penstock.sql.borrowed import BorrowedConnection, NotBorrowableError
from penstock.sql.errors import Contended, DatabaseError, SchemaChanged, Unreachable
from penstock.storage.sql import stored_state
from penstock.storage.sql.stored_state import queue_id_of

MAX_MESSAGES = 100_000
"""Messages that a `with` block holds until its end."""


class Outbox:
    """Sends messages in the transaction of the application's own connection. Made by `outbox`.

    In a `with` block messages are collected and stored at its end, in an order of tables that is the same everywhere,
    so that two transactions that send to several topics never wait for each other. Without one each is stored at once.
    """

    def __init__(self, connection: object) -> None:
        """Raises `InvalidInputError`."""
        try:
            self._connection = BorrowedConnection(connection)
        except NotBorrowableError as error:
            raise InvalidInputError(str(error)) from error
        self._topics: dict[str, Mapping[int, PartitionRef | None]] = {}
        self._collected: list[Outgoing] | None = None

    def send(self, topic: str, value: Value, **options: Unpack[SendOptions]) -> Receipt | None:
        """Send a message in the application's transaction: it is visible if and only if that commits.

        From then to the commit no other client can append to the partition, so send late in the transaction.

        Args:
            topic: The topic, which has to exist.
            value: The payload.
            **options: Those of `Client.send`: `key`, `headers`, `tags`, `delay` and so on.

        Returns:
            Where the message is if the transaction commits; None inside a `with` block.

        Raises:
            InvalidInputError: An argument is invalid.
            TopicError: The topic, or its table, does not exist.
            SendError: The database refused the message. Roll the transaction back.
        """
        outgoing = compose(topic, value, **options)
        if self._collected is None:
            return self._store([outgoing])[0]
        if len(self._collected) >= MAX_MESSAGES:
            raise InvalidInputError(f"one block can send {MAX_MESSAGES} messages")
        self._collected.append(outgoing)
        return None

    def __enter__(self) -> Self:
        self._collected = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        collected, self._collected = self._collected, None
        if error is None and collected:
            self._store(collected)

    def _store(self, messages: list[Outgoing]) -> list[Receipt]:
        connection = self._connection
        try:
            return append_messages(
                connection, messages, self._refs, random.randrange, locks_by_update=connection.locks_by_update
            )
        except SchemaChanged as error:
            raise TopicError(f"the database has no tables of Penstock, or older ones: {error}") from error
        except DatabaseError as error:
            is_retriable = isinstance(error, Contended | Unreachable)
            raise SendError(f"the message was not stored: {error}", is_retriable=is_retriable) from error
        except StoreRefusedError as error:
            raise SendError(str(error)) from error

    def _refs(self, topic: str) -> Mapping[int, PartitionRef | None]:
        if topic not in self._topics:
            self._topics[topic] = self._read(topic)
        return self._topics[topic]

    def _read(self, topic: str) -> Mapping[int, PartitionRef | None]:
        connection = self._connection
        node = SqlTree(NAMESPACE).get(connection, nodes.topic_path(topic))
        if node is None:
            raise TopicError(f"topic {topic} does not exist in this database; create it first")
        image = nodes.decode_topic(topic, bytes(node.value))
        if not image.is_shared or image.view_of is not None:
            raise TopicError(f"topic {topic} has no table in this database: nothing can be sent to it here")
        config = effective_config(image, {})
        found: dict[int, PartitionRef | None] = {}
        for partition in image.partitions:
            tp = TopicPartition(topic, partition.index)
            queue_id = queue_id_of(tp, image.id)
            row = stored_state.find_row(connection, queue_id) if partition.database == DEFAULT_DATABASE else None
            if row is None and partition.database == DEFAULT_DATABASE:
                raise TopicError(f"the table of {tp} is not there yet: use a client or a broker once; nothing was sent")
            found[partition.index] = (
                None if row is None else PartitionRef(tp, queue_id, row.table, DEFAULT_DATABASE, config)
            )
        return found


def outbox(connection: object) -> Outbox:
    """Send messages in the transaction of a connection of the application (the outbox pattern).

    Args:
        connection: A connection of PyMySQL, psycopg or sqlite3, or a `Connection` or `Session` of SQLAlchemy, in a
            transaction, to the database that has the topics.

    Returns:
        An object whose `send` takes what `Client.send` takes.

    Raises:
        InvalidInputError: The connection is of another kind, or commits by itself.

    Example:
        ```python
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO orders (id) VALUES (7)"))
            penstock.direct.outbox(connection).send("orders", b"order 7", key="ann")
        ```
    """
    return Outbox(connection)
