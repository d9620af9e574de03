"""`penstock.open` and `penstock.aio.open`: a client for an address, whatever form of queue is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from penstock.brokerless.address import QueueAddress
from penstock.brokerless.clients import AsyncStoreClient, StoreClient
from penstock.brokerless.memory.shared import SharedMemoryStore
from penstock.brokerless.memory.store import MemoryStore
from penstock.brokerless.memory.topics import MAX_MESSAGES
from penstock.brokerless.store import QueueStore
from penstock.sdk import aio_client, client
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.payloads.codecs import Codec
from penstock.sdk.send.sending_options import Sending


class OpenOptions(TypedDict, total=False):
    """The options of `penstock.open`. `penstock.Client` says what they mean."""

    client_id: str | None
    """The name of the application."""
    sending: Sending | None
    """Delivery guarantee, batching, and what to do while the queue is unreachable."""
    hooks: Sequence[Hooks]
    """Objects that observe messages."""
    reply_topic: str
    """The topic for replies to requests of this client."""
    codecs: Sequence[Codec]
    """Codecs of typed payloads; the first one is the default."""


def open(address: str, **options: Unpack[OpenOptions]) -> client.Client:
    """Open a queue.

    A program moves from one form of queue to another by changing the address; `docs/forms.md` says what each promises.

    Args:
        address: `kafka://HOST:PORT` (brokers of Penstock or Kafka), `mysql://…`, `postgresql://…` or `sqlite:///FILE`
            (a database, see `penstock.direct.Client`), `memory://` (this process) or `memory://NAME` (shared by all
            clients of this process that use the name).
        **options: See `OpenOptions`: `client_id`, `sending`, `hooks`, `reply_topic`, `codecs`.

    Returns:
        A client with the interface of `penstock.Client`.

    Raises:
        InvalidInputError: The address or an option is invalid.

    Example:
        ```python
        with penstock.open("memory://") as client:
            client.send("orders", b"order 7")
        ```
    """
    parsed = QueueAddress.parse(address)
    if parsed.form == "kafka":
        parsed.check_options()
        return client.Client(parsed.location, **options)
    return StoreClient(store_opener(parsed), address=parsed.shown, **options)


def open_async(address: str, **options: Unpack[OpenOptions]) -> aio_client.Client:
    """Open a queue for an asyncio application. Arguments and errors are those of `penstock.open`."""
    parsed = QueueAddress.parse(address)
    if parsed.form == "kafka":
        parsed.check_options()
        return aio_client.Client(parsed.location, **options)
    return AsyncStoreClient(store_opener(parsed), address=parsed.shown, **options)


def store_opener(address: QueueAddress) -> Callable[[], QueueStore]:
    """Opens the store of an address when it is called. Raises `InvalidInputError` for options at once."""
    match address.form:
        case "memory":
            return _memory(address)
        case "mysql" | "mariadb" | "postgresql" | "sqlite":
            return _database(address)
    raise InvalidInputError(f"{address.form}:// cannot be opened yet")


def _database(address: QueueAddress) -> Callable[[], QueueStore]:
    from penstock.brokerless.sql.store import SqlStore

    return lambda: SqlStore(address.text)


def _memory(address: QueueAddress) -> Callable[[], QueueStore]:
    address.check_options("partitions", "max_messages")
    partitions, most = address.number("partitions", 1), address.number("max_messages", MAX_MESSAGES)
    name = address.location
    if name:
        return lambda: SharedMemoryStore.opened(name, partitions=partitions, max_messages=most)
    return lambda: MemoryStore(partitions=partitions, max_messages=most)
