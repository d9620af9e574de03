"""`penstock.open` and `penstock.aio.open`: a client for an address, whatever form of queue is there."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Unpack
from urllib.parse import unquote, urlsplit

from penstock.brokerless.address import QueueAddress
from penstock.brokerless.clients import AsyncStoreClient, OpenOptions, StoreClient
from penstock.brokerless.memory.shared import SharedMemoryStore
from penstock.brokerless.memory.store import MemoryStore
from penstock.brokerless.memory.topics import MAX_BYTES, MAX_MESSAGES
from penstock.brokerless.store import QueueStore
from penstock.brokerless.topic_entries import DEFAULT_PARTITIONS
from penstock.extras import missing_extra
from penstock.sdk import aio_client, client
from penstock.sdk.errors import InvalidInputError

_PREFIX_CHARACTERS = frozenset(string.ascii_letters + string.digits + "-.")


def open(address: str, **options: Unpack[OpenOptions]) -> client.Client:
    """Open a queue.

    A program moves from one form of queue to another by changing the address; `docs/forms.md` says what each promises.

    Args:
        address: `kafka://HOST:PORT` (brokers of Penstock or Kafka), `mysql://…`, `postgresql://…` or `sqlite:///FILE`
            (a database, see `penstock.direct.Client`), `redis://HOST:PORT/DATABASE`, `file:///FOLDER` (the processes of
            one machine), `tcp://HOST:PORT?serve` (this process serves its topics) and `tcp://HOST:PORT` (the topics
            that another process serves), `memory://` (this process) or `memory://NAME` (shared by all clients of this
            process that use the name).
        **options: See `OpenOptions`: `client_id`, `sending`, `hooks`, `reply_topic`, `codecs`.

    Returns:
        A client with the interface of `penstock.Client`.

    Raises:
        InvalidInputError: The address or an option is invalid, or this process cannot serve at the address.
        ClientError: The folder cannot be used.
        MissingExtraError: The form needs a library that is not installed; the text has the command that installs it.

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
        case "file":
            return _file(address)
        case "redis" | "rediss":
            return _redis(address)
        case "tcp":
            return _tcp(address)
        case _:
            return _database(address)


def _database(address: QueueAddress) -> Callable[[], QueueStore]:
    from penstock.brokerless.sql.store import SqlStore

    return lambda: SqlStore(address.text)


def _memory(address: QueueAddress) -> Callable[[], QueueStore]:
    address.check_options("partitions", "max_messages", "max_bytes")
    partitions = address.number("partitions", 1)
    most, most_bytes = address.number("max_messages", MAX_MESSAGES), address.number("max_bytes", MAX_BYTES)
    name = address.location
    if name:
        return lambda: SharedMemoryStore.opened(name, partitions=partitions, max_messages=most, max_bytes=most_bytes)
    return lambda: MemoryStore(partitions=partitions, max_messages=most, max_bytes=most_bytes)


def _file(address: QueueAddress) -> Callable[[], QueueStore]:
    from penstock.brokerless.files.queue import open_folder
    from penstock.brokerless.files.store import MAX_DELAYED

    address.check_options("sync", "partitions", "max_delayed")
    folder = Path(unquote(address.location))
    if not folder.is_absolute():
        raise InvalidInputError(
            f"{address.shown}: a folder is written with its whole path and three slashes: file:///var/lib/app/queue"
        )
    is_synced = _one_of(address, "sync", ("never", "always")) == "always"
    partitions = address.number("partitions", DEFAULT_PARTITIONS)
    max_delayed = address.number("max_delayed", MAX_DELAYED)
    return lambda: open_folder(folder, is_synced=is_synced, partitions=partitions, max_delayed=max_delayed)


def _redis(address: QueueAddress) -> Callable[[], QueueStore]:
    try:
        from penstock.brokerless.redis.queue import RedisQueue
        from penstock.brokerless.redis.server import RedisServer
        from penstock.brokerless.redis.store import MAX_DELAYED
    except ModuleNotFoundError as error:
        raise missing_extra(error, f"{address.form}://") or error from None

    address.check_options("prefix", "partitions", "max_delayed", "trim")
    prefix = address.options.get("prefix", "penstock")
    if not prefix or not set(prefix) <= _PREFIX_CHARACTERS:
        raise InvalidInputError(f"{address.shown}: prefix must be letters, digits, dashes and dots, not {prefix!r}")
    trims_acknowledged = _one_of(address, "trim", ("retention", "acknowledged")) == "acknowledged"
    partitions = address.number("partitions", DEFAULT_PARTITIONS)
    max_delayed = address.number("max_delayed", MAX_DELAYED)
    server = RedisServer(f"{address.form}://{address.location}", address.shown, prefix)
    return lambda: RedisQueue(
        server, partitions=partitions, max_delayed=max_delayed, trims_acknowledged=trims_acknowledged
    )


def _tcp(address: QueueAddress) -> Callable[[], QueueStore]:
    from penstock.brokerless.tcp.client import RemoteStore
    from penstock.brokerless.tcp.queue import ServedQueue

    is_served = "serve" in address.options
    address.check_options(*(("serve", "partitions", "max_messages", "max_bytes") if is_served else ("serve",)))
    if address.options.get("serve", ""):
        raise InvalidInputError(f"{address.shown}: serve takes no value: tcp://127.0.0.1:7000?serve")
    parts = urlsplit(f"//{address.location}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInputError(f"{address.shown}: {error}") from None
    if port is None or parts.path not in ("", "/") or parts.username is not None:
        raise InvalidInputError(f"{address.shown}: expected an address such as tcp://127.0.0.1:7000")
    partitions = address.number("partitions", DEFAULT_PARTITIONS)
    most, most_bytes = address.number("max_messages", MAX_MESSAGES), address.number("max_bytes", MAX_BYTES)
    at = host or "127.0.0.1"
    if is_served:
        return lambda: ServedQueue(at, port, partitions=partitions, max_messages=most, max_bytes=most_bytes)
    return lambda: RemoteStore(at, port)


def _one_of(address: QueueAddress, name: str, allowed: tuple[str, ...]) -> str:
    """An option that is one of some words; the first is the default."""
    given = address.options.get(name, allowed[0])
    if given not in allowed:
        raise InvalidInputError(f"{address.shown}: {name} must be one of {', '.join(allowed)}, not {given!r}")
    return given
