"""Stubs for applications on `penstock.direct`: messages in memory, and handlers in transactions of a connection that
the test gives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from penstock import direct
from penstock.brokerless.sql.handler_transaction import AsyncHandlerTransaction, HandlerTransaction
from penstock.clock import ManualClock
from penstock.direct import aio
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.message import Message
from penstock.sdk.payloads.codecs import Codec, Codecs
from penstock.sdk.ports import Outgoing
from penstock.sdk.receive.handler_call import Handler
from penstock.sdk.receive.handler_signature import signature_of
from penstock.sdk.validation import check_handler
from penstock.testing import async_stub_client, stub_client
from penstock.testing.stub_core import Raises

T = TypeVar("T")
Send = Callable[[Outgoing], object]


class StubClient(stub_client.StubClient, direct.Client):
    """A `penstock.direct.Client` for tests: a `penstock.testing.StubClient` with `subscribe_in_transaction`.

    Example:
        ```python
        connection = sqlite3.connect(":memory:")
        stub = StubClient(connection)
        shop.subscribe_all(stub)                     # your code, which takes a penstock.direct.Client
        stub.send("orders", b"42")
        stub.run()                                   # the handler has worked in a transaction, and that is committed
        ```
    """

    def __init__(
        self,
        connection: Any,
        *,
        partitions: int = 1,
        hooks: Sequence[Hooks] = (),
        clock: ManualClock | None = None,
        raises: Raises = AssertionError,
        codecs: Sequence[Codec] = (),
    ) -> None:
        """Create a stub.

        Args:
            connection: What handlers in transactions get: a connection of PyMySQL, psycopg or sqlite3. The stub
                commits what a handler did, or rolls it back if the handler raises. It does not close the connection.
            partitions: As for `penstock.testing.StubClient`, like all others.
            hooks: Objects that observe messages.
            clock: The clock to use.
            raises: Exception types of handlers that fail the test.
            codecs: Formats for typed payloads.

        Raises:
            InvalidInputError: An argument is invalid.
        """
        super().__init__(partitions=partitions, hooks=hooks, clock=clock, raises=raises, codecs=codecs)
        self._connection = connection

    def create_topic(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> bool:
        """Create a topic, with the number of partitions of the stub and without settings; False if it exists."""
        return self._stub.topics.create(topic)

    def _in_transaction(self, group: str, handler: Callable[..., object]) -> Handler:
        return _InTransaction(handler, self._codecs, self._connection, self._stub.send)


class AsyncStubClient(async_stub_client.AsyncStubClient, aio.Client):
    """A `penstock.direct.aio.Client` for tests, as `StubClient` is a `penstock.direct.Client`.

    Handlers in transactions run one after the other, because they have one connection, and in the thread of the event
    loop.
    """

    def __init__(
        self,
        connection: Any,
        *,
        partitions: int = 1,
        hooks: Sequence[Hooks] = (),
        clock: ManualClock | None = None,
        raises: Raises = AssertionError,
        codecs: Sequence[Codec] = (),
    ) -> None:
        """Create a stub. Arguments and errors are those of `StubClient`."""
        super().__init__(partitions=partitions, hooks=hooks, clock=clock, raises=raises, codecs=codecs)
        self._connection = connection
        self._turn = asyncio.Lock()

    async def create_topic(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> bool:
        """Create a topic, as `StubClient.create_topic` does."""
        return self._stub.topics.create(topic)

    def _in_transaction(self, group: str, handler: Callable[..., Awaitable[object]]) -> Handler:
        return _AwaitedInTransaction(handler, self._codecs, self._connection, self._stub.send, self._turn)


class _InTransaction(Handler):
    """Calls a function in a transaction."""

    __slots__ = ("_connection", "_send")

    def __init__(self, function: Callable[..., object], codecs: Codecs, connection: Any, send: Send) -> None:
        check_handler(function, is_awaited=False)
        signature = signature_of(function, is_batch=False, context=HandlerTransaction)
        super().__init__(function, is_batch=False, signature=signature, codecs=codecs)
        self._connection = connection
        self._send = send

    def __call__(self, messages: list[Message], payloads: list[Any]) -> None:
        transaction = HandlerTransaction(self._connection, self.codecs)
        try:
            self._call(messages, payloads, transaction)
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()
        for outgoing in transaction.messages:
            self._send(outgoing)


class _AwaitedInTransaction(Handler):
    """Awaits a coroutine function in a transaction."""

    __slots__ = ("_connection", "_send", "_turn")

    def __init__(
        self,
        function: Callable[..., Awaitable[object]],
        codecs: Codecs,
        connection: Any,
        send: Send,
        turn: asyncio.Lock,
    ) -> None:
        check_handler(function, is_awaited=True)
        signature = signature_of(function, is_batch=False, context=AsyncHandlerTransaction)
        super().__init__(function, is_batch=False, signature=signature, codecs=codecs)
        self._connection = connection
        self._send = send
        self._turn = turn

    async def __call__(self, messages: list[Message], payloads: list[Any]) -> None:
        async with self._turn:
            transaction = _StubTransaction(self._connection, self.codecs)
            try:
                await self._call(messages, payloads, transaction)
            except BaseException:
                self._connection.rollback()
                raise
            self._connection.commit()
            for outgoing in transaction.messages:
                self._send(outgoing)


class _StubTransaction(AsyncHandlerTransaction):
    """Does in the event loop what others do in the thread of their transaction."""

    def __init__(self, connection: Any, codecs: Codecs) -> None:
        super().__init__(codecs)
        self._connection = connection

    async def run(self, work: Callable[[Any], T]) -> T:
        return work(self._connection)
