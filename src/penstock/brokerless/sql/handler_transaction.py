"""A transaction of the database in which a handler works, and in which it is noted that the message was handled.

The note has the place of the message in its own topic, also if it arrives as a retry. A message that was handled and
comes again, because its offset was not committed, its deadline passed, or COMMIT was not answered, is found there and
is not handled again. Two members that handle one message at the same time wait for each other at the note.

A transaction lives in a thread of the database. A handler that is a function runs in that thread. One that is a
coroutine function runs as a task of the application's event loop, and hands the thread what is to be done there; the
thread waits for that, and for the end of the handler.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar, Unpack

from penstock.brokerless.sql import group_tables
from penstock.brokerless.sql.message_appends import UnpreparedError, append_messages
from penstock.brokerless.sql.store import SqlStore
from penstock.brokerless.store import StoreAwayError
from penstock.cluster.metadata import DEFAULT_DATABASE
from penstock.ids import TopicPartition
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.message import Message
from penstock.sdk.payloads.codecs import Codecs
from penstock.sdk.ports import Outgoing
from penstock.sdk.receive.handler_call import Handler
from penstock.sdk.receive.handler_signature import signature_of
from penstock.sdk.receive.subscription_options import SubscriptionOptions
from penstock.sdk.send.outgoing_message import SendOptions, Value, compose
from penstock.sdk.validation import check_handler
from penstock.sql.database import Connection
from penstock.sql.errors import Contended, Duplicate

T = TypeVar("T")

_PAUSE_S = 0.1
_TRIES = 50
_FORGET_EVERY_S = 600.0
_NOT_TAKEN = ("batch", "dedup", "delivery")


class _SendingTransaction:
    """Collects the messages that are stored with a transaction."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs
        self._messages: list[Outgoing] = []

    def send(self, topic: str, value: Value, **options: Unpack[SendOptions]) -> None:
        """Send a message with the transaction: it is stored if and only if the transaction commits. The arguments are
        those of `Client.send`. Raises `InvalidInputError`.
        """
        self._messages.append(compose(topic, value, self._codecs, **options))

    @property
    def messages(self) -> list[Outgoing]:
        """What was sent so far."""
        return self._messages


class HandlerTransaction(_SendingTransaction):
    """What a handler gets that works in a transaction."""

    def __init__(self, connection: Any, codecs: Codecs) -> None:
        super().__init__(codecs)
        self.connection = connection
        """The driver's connection (PyMySQL, psycopg or sqlite3). Do not commit, roll back or close it."""

    def cursor(self) -> Any:
        """A cursor of the connection."""
        return self.connection.cursor()


class AsyncHandlerTransaction(_SendingTransaction):
    """What a coroutine gets that works in a transaction. The drivers block, so their calls run in the thread of the
    transaction, one after the other, and are awaited.
    """

    def __init__(self, codecs: Codecs) -> None:
        super().__init__(codecs)
        self._calls: queue.SimpleQueue[Callable[[Any], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_over = False

    async def run(self, work: Callable[[Any], T]) -> T:
        """Call a function with the driver's connection (PyMySQL, psycopg or sqlite3) in the thread of the transaction.

        Args:
            work: It must not commit, roll back or close the connection.

        Returns:
            What `work` returns. It raises what `work` raises.
        """
        result: Future[T] = Future()

        def call(connection: Any) -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(work(connection))
            except BaseException as error:
                result.set_exception(error)

        with self._lock:
            if self._is_over:
                raise InvalidInputError("the transaction is over: use it only inside of the handler")
            self._calls.put(call)
        return await asyncio.wrap_future(result)

    async def execute(self, sql: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Execute a statement, with the driver's marks for parameters (`%s`, in SQLite `?`).

        Returns:
            The rows of a query, else an empty list.
        """

        def work(connection: Any) -> list[Any]:
            cursor = connection.cursor()
            try:
                cursor.execute(sql, parameters)
                return list(cursor.fetchall()) if cursor.description else []
            finally:
                cursor.close()

        return await self.run(work)

    def serve(self, connection: Any, handling: Future[object], until_s: float) -> None:
        """In the thread of the transaction: do what the handler wants done, until it ends. Raises what it raises."""
        handling.add_done_callback(lambda _: self._calls.put(None))
        try:
            while (call := self._calls.get(timeout=max(0.0, until_s - time.monotonic()))) is not None:
                call(connection)
        except queue.Empty:
            handling.cancel()
            raise StoreAwayError("the handler took longer than a transaction may; nothing was committed") from None
        finally:
            self._end()
        handling.result()

    def _end(self) -> None:
        """Nothing is done any more, not even what waits."""
        with self._lock:
            self._is_over = True
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            if call is not None:
                call(_Closed())


class _Closed:
    """Stands for the connection of a transaction that is over."""

    def __getattr__(self, name: str) -> Any:
        raise InvalidInputError("the transaction is over: nothing was done")


class _HandledBeforeError(Exception):
    """There is a note of the message."""


def check_transaction_options(options: SubscriptionOptions) -> None:
    """Raises `InvalidInputError` for options of subscriptions that say how often a message is handled."""
    for name in _NOT_TAKEN:
        if name in options:
            raise InvalidInputError(f"subscribe_in_transaction does not take {name}: each message is handled once")


class _InTransaction(Handler):
    """Calls a handler in a transaction, at most once with success for each message."""

    __slots__ = ("_forgotten_s", "_group", "_store", "_turn")

    def __init__(
        self, store: SqlStore, group: str, function: Callable[..., object], context: type[object], codecs: Codecs
    ) -> None:
        signature = signature_of(function, is_batch=False, context=context)
        super().__init__(function, is_batch=False, signature=signature, codecs=codecs)
        self._store = store
        self._group = group
        self._forgotten_s = time.monotonic()
        self._turn = 0

    def _note(self, connection: Connection, message: Message) -> None:
        origin = message.origin
        at = TopicPartition(origin.topic, origin.partition)
        try:
            group_tables.note_handled(connection, self._group, at, origin.offset)
        except Duplicate:
            raise _HandledBeforeError from None

    def _append(self, connection: Connection, messages: list[Outgoing]) -> None:
        if messages:
            append_messages(connection, messages, self._store.prepared_refs, self._choose)

    def _choose(self, count: int) -> int:
        self._turn += 1
        return self._turn % count

    @property
    def _forgets(self) -> bool:
        """Whether old notes are to be deleted."""
        is_due = time.monotonic() - self._forgotten_s >= _FORGET_EVERY_S
        if is_due:
            self._forgotten_s = time.monotonic()
        return is_due


class TransactionalHandler(_InTransaction):
    """For handlers that are functions."""

    def __init__(self, store: SqlStore, group: str, function: Callable[..., object], codecs: Codecs) -> None:
        """Raises `InvalidInputError`."""
        check_handler(function, is_awaited=False)
        super().__init__(store, group, function, HandlerTransaction, codecs)

    def __call__(self, messages: list[Message], payloads: list[Any]) -> None:
        thread = self._store.thread

        def work(connection: Connection, surroundings: Context) -> None:
            def call(transaction: HandlerTransaction) -> object:
                return surroundings.run(self._call, messages, payloads, transaction)

            self._handle(connection, call, messages[0])

        for attempt in range(_TRIES):
            try:
                thread.change(DEFAULT_DATABASE, partial(work, surroundings=copy_context()))
                break
            except _HandledBeforeError:
                break
            except UnpreparedError as error:
                # Nothing was done: a transaction cannot make the tables that it needs.
                self._store.prepare_topic(error.topic)
                continue
            except StoreAwayError as error:
                if not _may_try_again(error, attempt):
                    raise
            # It may have been committed: then the note is there.
            time.sleep(_PAUSE_S)
        self._store.notify()
        if self._forgets:
            thread.change(DEFAULT_DATABASE, group_tables.forget_handled)

    def _handle(self, connection: Connection, call: Callable[[HandlerTransaction], object], message: Message) -> None:
        """In a thread of the database."""
        self._note(connection, message)
        transaction = HandlerTransaction(connection.driver_connection, self.codecs)
        call(transaction)
        self._append(connection, transaction.messages)


class AsyncTransactionalHandler(_InTransaction):
    """For handlers that are coroutine functions."""

    def __init__(self, store: SqlStore, group: str, function: Callable[..., Awaitable[object]], codecs: Codecs) -> None:
        """Raises `InvalidInputError`."""
        check_handler(function, is_awaited=True)
        super().__init__(store, group, function, AsyncHandlerTransaction, codecs)

    async def __call__(self, messages: list[Message], payloads: list[Any]) -> None:
        loop, thread = asyncio.get_running_loop(), self._store.thread
        await asyncio.to_thread(lambda: thread.link)

        begun: list[Future[object]] = []

        def begin(surroundings: Context, transaction: AsyncHandlerTransaction) -> Future[object]:
            handling = surroundings.run(
                asyncio.run_coroutine_threadsafe, self._call(messages, payloads, transaction), loop
            )
            begun.append(handling)
            return handling

        def work(connection: Connection, surroundings: Context) -> None:
            self._handle(connection, partial(begin, surroundings), messages[0])

        for attempt in range(_TRIES):
            try:
                await thread.change_soon(DEFAULT_DATABASE, partial(work, surroundings=copy_context()))
                break
            except _HandledBeforeError:
                break
            except asyncio.CancelledError:
                for handling in begun:
                    handling.cancel()
                raise
            except UnpreparedError as error:
                await asyncio.to_thread(self._store.prepare_topic, error.topic)
                continue
            except StoreAwayError as error:
                if not _may_try_again(error, attempt):
                    raise
            await asyncio.sleep(_PAUSE_S)
        self._store.notify()
        if self._forgets:
            await thread.change_soon(DEFAULT_DATABASE, group_tables.forget_handled)

    def _handle(
        self, connection: Connection, begin: Callable[[AsyncHandlerTransaction], Future[object]], message: Message
    ) -> None:
        """In a thread of the database."""
        until_s = time.monotonic() + self._store.thread.timeout_ms / 1000
        self._note(connection, message)
        transaction = AsyncHandlerTransaction(self.codecs)
        transaction.serve(connection.driver_connection, begin(transaction), until_s)
        self._append(connection, transaction.messages)


def _may_try_again(error: StoreAwayError, attempt: int) -> bool:
    """Whether it may have been committed, or others held what it needed."""
    return attempt < _TRIES - 1 and (error.is_outcome_unknown or isinstance(error.__cause__, Contended))
