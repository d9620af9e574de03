"""`penstock.direct.Client`: the client for applications that use threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from penstock.brokerless.address import QueueAddress
from penstock.brokerless.clients import StoreClient
from penstock.brokerless.sql.handler_transaction import TransactionalHandler, check_transaction_options
from penstock.brokerless.sql.store import CONNECTIONS, TIMEOUT_MS, SqlStore
from penstock.durations import Duration, duration_ms
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.payloads.codecs import Codec
from penstock.sdk.receive.handler_call import Handler
from penstock.sdk.receive.subscription_options import SubscriptionOptions, validate_options
from penstock.sdk.send.request_reply import REPLY_TOPIC
from penstock.sdk.send.sending_options import Sending

HandlerT = TypeVar("HandlerT", bound=Callable[..., object])


class Client(StoreClient):
    """Sends and receives messages through a database. Safe for use by any number of threads.

    It has everything that `penstock.Client` has, and uses the tables that a broker with `--sql` uses: a topic can be
    used with and without brokers, also at the same time.

    Example:
        ```python
        with penstock.direct.Client("mysql://shop:secret@localhost/shop") as client:
            client.send("orders", b"order 7", key="ann", delay="30m")
        ```
    """

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
        """Create a client. It connects when it is first used, and makes the tables that are missing.

        Args:
            address: `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, `postgresql://…` or `sqlite:///FILE`. With
                `?partitions=8` at its end, topics that this client creates by themselves have eight partitions.
            client_id: The name of the application. Every message carries it in the header `penstock-sender`.
            sending: Delivery guarantee, batching, and what to do while the database is unreachable.
            hooks: Objects that observe messages, such as `PrometheusHooks()`.
            reply_topic: The topic for replies to requests of this client. The first request creates it.
            codecs: Formats for typed payloads beside JSON.
            connections: How many connections the client opens at most, to each database server.
            timeout: How long the database may take for one transaction.
            key_file: The file with the key to the passwords of database groups, if there are any (`penstock dbnode
                key`). Without it the client uses only the database of its address.
            offsets: `redis://HOST:PORT/DATABASE` to commit offsets to a Redis, from which they go to the database once
                a second. If that Redis is lost, about a second of messages is received again.

        Raises:
            InvalidInputError: An argument is invalid.
            SpillError: The folder of `Spill` cannot be used.
        """
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

    def create_topic(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> bool:
        """Create a topic and its tables.

        Sending and subscribing create topics by themselves, with one partition unless the client's address says
        otherwise. An outbox does not.

        Args:
            topic: The name.
            partitions: How many members of a group can read it at the same time.
            settings: Topic settings, such as `{"retention.ms": "86400000"}`.

        Returns:
            False if the topic exists, which leaves it as it is.

        Raises:
            InvalidInputError: The name, the number or a setting is invalid.
            TopicError: The topic could not be created.
        """
        return self._sql.create_topic(topic, partitions, settings)

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
        """Register a function that handles each message inside a transaction of the database.

        It takes a `HandlerTransaction`, whose `connection` is the driver's own, beside what a handler of `subscribe`
        takes: the message, its decoded payload, or both. What it does there, what it sends with
        `HandlerTransaction.send`, and the note that the message was handled are one transaction: all of it happens
        once, or not at all. An exception rolls back and causes a retry. Use it as a method or as a decorator.

        The transaction has to end within the client's `timeout`, and takes one of its connections.

        Args:
            topics: The name of a topic, or a list of names.
            handler: A function such as `f(order: Order, transaction: HandlerTransaction)`. Leave it out to use the
                decorator.
            **options: As for `subscribe`, but for `batch`, `dedup` and `delivery`.

        Returns:
            The handler, or a decorator for it.

        Raises:
            InvalidInputError: An option is invalid, the handler cannot be called like that, or messages cannot be
                decoded to the type of its annotation.

        Example:
            ```python
            @client.subscribe_in_transaction("orders", group="billing")
            def bill(message: penstock.Message, transaction: penstock.direct.HandlerTransaction) -> None:
                with transaction.cursor() as cursor:
                    cursor.execute("INSERT INTO bills (order_id) VALUES (%s)", (message.biz_id,))
            ```
        """
        check_transaction_options(options)
        validated = validate_options(topics, **options)

        def register(handler: HandlerT) -> HandlerT:
            self._register(validated, self._in_transaction(validated.group, handler))
            return handler

        return register if handler is None else register(handler)

    def _in_transaction(self, group: str, handler: Callable[..., object]) -> Handler:
        return TransactionalHandler(self._sql, group, handler, self._codecs)
