"""A transaction of the database in which a handler works, and in which it is noted that the message was handled.

The note has the place of the message in its own topic, also if it arrives as a retry. A message that was handled and
comes again, because its offset was not committed, its deadline passed, or COMMIT was not answered, is found there and
is not handled again. Two members that handle one message at the same time wait for each other at the note.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Unpack

from penstock.brokerless.sql import group_tables
from penstock.brokerless.sql.message_appends import UnpreparedError, append_messages
from penstock.brokerless.sql.store import SqlStore
from penstock.brokerless.store import StoreAwayError
from penstock.cluster.metadata import DEFAULT_DATABASE
from penstock.ids import TopicPartition
from penstock.sdk.message import Message
from penstock.sdk.ports import Outgoing
from penstock.sdk.send.outgoing_message import SendOptions, Value, compose
from penstock.sql.database import Connection
from penstock.sql.errors import Contended, Duplicate

_PAUSE_S = 0.1
_TRIES = 50
_FORGET_EVERY_S = 600.0


class HandlerTransaction:
    """What a handler gets that works in a transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        """The driver's connection (PyMySQL, psycopg or sqlite3). Do not commit, roll back or close it."""
        self._messages: list[Outgoing] = []

    def cursor(self) -> Any:
        """A cursor of the connection."""
        return self.connection.cursor()

    def send(self, topic: str, value: Value, **options: Unpack[SendOptions]) -> None:
        """Send a message with the transaction: it is stored if and only if the transaction commits. The arguments are
        those of `Client.send`. Raises `InvalidInputError`.
        """
        self._messages.append(compose(topic, value, **options))

    @property
    def messages(self) -> list[Outgoing]:
        """What was sent so far."""
        return self._messages


TransactionHandler = Callable[[Message, HandlerTransaction], object]


def in_transaction(store: SqlStore, group: str, handler: TransactionHandler) -> Callable[[Message], None]:
    """A handler of messages that calls another one in a transaction. Log lines name that one."""
    call = _TransactionalHandler(store, group, handler)

    def handle(message: Message) -> None:
        call(message)

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        if hasattr(handler, name):
            setattr(handle, name, getattr(handler, name))
    return handle


class _TransactionalHandler:
    """Calls a handler in a transaction, at most once with success for each message."""

    def __init__(self, store: SqlStore, group: str, handler: TransactionHandler) -> None:
        self._store = store
        self._group = group
        self._handler = handler
        self._forgotten_s = time.monotonic()
        self._turn = 0

    def __call__(self, message: Message) -> None:
        origin = message.origin
        at = TopicPartition(origin.topic, origin.partition)
        for attempt in range(_TRIES):
            try:
                self._store.thread.change(
                    DEFAULT_DATABASE, lambda connection: self._handle(connection, message, at, origin.offset)
                )
                break
            except UnpreparedError as error:
                # Nothing was done: a transaction cannot make the tables that it needs.
                self._store.prepare_topic(error.topic)
                continue
            except StoreAwayError as error:
                if isinstance(error.__cause__, Duplicate):
                    break  # handled before
                is_settled = not error.is_outcome_unknown and not isinstance(error.__cause__, Contended)
                if is_settled or attempt == _TRIES - 1:
                    raise
            # It may have been committed: then the note is there.
            time.sleep(_PAUSE_S)
        self._store.notify()
        self._forget_if_due()

    def _handle(self, connection: Connection, message: Message, at: TopicPartition, offset: int) -> None:
        """In a thread of the database."""
        group_tables.note_handled(connection, self._group, at, offset)
        transaction = HandlerTransaction(connection.driver_connection)
        self._handler(message, transaction)
        if transaction.messages:
            append_messages(connection, transaction.messages, self._store.prepared_refs, self._choose)

    def _choose(self, count: int) -> int:
        self._turn += 1
        return self._turn % count

    def _forget_if_due(self) -> None:
        if time.monotonic() - self._forgotten_s >= _FORGET_EVERY_S:
            self._forgotten_s = time.monotonic()
            self._store.thread.change(DEFAULT_DATABASE, group_tables.forget_handled)
