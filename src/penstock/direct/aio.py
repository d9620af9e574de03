"""`penstock.direct.aio.Client`: the client for asyncio applications."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from penstock.brokerless.address import QueueAddress
from penstock.brokerless.clients import AsyncStoreClient
from penstock.brokerless.sql.handler_transaction import (
    AsyncHandlerTransaction,
    AsyncTransactionalHandler,
    check_transaction_options,
)
from penstock.brokerless.sql.store import CONNECTIONS, TIMEOUT_MS, SqlStore
from penstock.durations import Duration, duration_ms
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.payloads.codecs import Codec
from penstock.sdk.receive.handler_call import Handler
from penstock.sdk.receive.subscription_options import SubscriptionOptions, validate_options
from penstock.sdk.send.request_reply import REPLY_TOPIC
from penstock.sdk.send.sending_options import Sending

__all__ = ["AsyncHandlerTransaction", "Client"]

HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[object]])


class Client(AsyncStoreClient):
    """Sends and receives messages through a database, for asyncio. `penstock.direct.Client` says what it does."""

    def __init__(
        self,
        address: str,
        *,
        client_id: str | None = None,
        sending: Sending | None = None,
        hooks: Sequence[Hooks] = (),
        reply_topic: str = REPLY_TOPIC,
        codecs: Sequence[Codec] = (),
        connections: int = CONNECTIONS,
        timeout: Duration = f"{TIMEOUT_MS}ms",
        key_file: str | Path | None = None,
        offsets: str | None = None,
    ) -> None:
        """Create a client. Arguments and errors are those of `penstock.direct.Client`."""
        self._store: SqlStore | None = None

        def new_store() -> SqlStore:
            self._store = SqlStore(
                address, connections=connections, timeout_ms=duration_ms(timeout), key_file=key_file, offsets=offsets
            )
            return self._store

        super().__init__(
            new_store,
            address=QueueAddress.parse(address).shown,
            client_id=client_id,
            sending=sending,
            hooks=hooks,
            reply_topic=reply_topic,
            codecs=codecs,
        )

    async def create_topic(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> bool:
        """Create a topic and its tables. Arguments, result and errors are those of `penstock.direct.Client`."""
        return await asyncio.to_thread(self._sql.create_topic, topic, partitions, settings)

    @property
    def _sql(self) -> SqlStore:
        assert self._store is not None, "made by the constructor"
        return self._store

    @overload
    def subscribe_in_transaction(
        self, topics: str | Sequence[str], handler: HandlerT, **options: Unpack[SubscriptionOptions]
    ) -> HandlerT: ...

    @overload
    def subscribe_in_transaction(
        self, topics: str | Sequence[str], handler: None = None, **options: Unpack[SubscriptionOptions]
    ) -> Callable[[HandlerT], HandlerT]: ...

    def subscribe_in_transaction(
        self, topics: str | Sequence[str], handler: Any = None, **options: Unpack[SubscriptionOptions]
    ) -> Any:
        """Register a coroutine function that handles each message inside a transaction of the database.

        It takes an `AsyncHandlerTransaction` beside what a handler of `subscribe` takes. Promises, arguments and errors
        are those of `penstock.direct.Client.subscribe_in_transaction`. The drivers of databases block, so statements
        run in the thread of the transaction, and the handler awaits them.

        Example:
            ```python
            @client.subscribe_in_transaction("orders", group="billing")
            async def bill(order: Order, transaction: penstock.direct.aio.AsyncHandlerTransaction) -> None:
                await transaction.execute("INSERT INTO bills (order_id) VALUES (%s)", (order.id,))
            ```
        """
        check_transaction_options(options)
        validated = validate_options(topics, **options)

        def register(handler: HandlerT) -> HandlerT:
            self._register(validated, self._in_transaction(validated.group, handler))
            return handler

        return register if handler is None else register(handler)

    def _in_transaction(self, group: str, handler: Callable[..., Awaitable[object]]) -> Handler:
        return AsyncTransactionalHandler(self._sql, group, handler, self._codecs)
