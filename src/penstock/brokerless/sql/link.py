"""What a client has open while it uses a database: the metadata tree, the database groups, and one event loop for them.

Everything asynchronous runs on the loop's own thread; callers are other threads, and wait. The link is made when it is
first needed. If that fails, the next call tries again. If it takes longer than a caller waits, it goes on, and the next
call waits for it: many clients that start at once on a busy database would else all begin anew, and never be done.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.brokerless.store import StoreAwayError, StoreRefusedError
from penstock.clock import SystemClock
from penstock.cluster.coordination.sql import SqlCoordination
from penstock.cluster.database_addresses import follow_groups
from penstock.cluster.decisions.settings import effective_config, topic_defaults
from penstock.cluster.decisions.topics import TopicRules
from penstock.cluster.metadata import DEFAULT_DATABASE, NO_LEADER, MetadataImage, TopicImage
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.broker import Limits, LogSettings
from penstock.config.database_address import DatabaseAddress
from penstock.config.topic import SHARED_STORAGE, STORAGE_SETTING, TopicConfig
from penstock.errors import ConfigError, CoordinationError, PenstockError, StorageError
from penstock.sdk.errors import ClosedError
from penstock.sql.database import Connection, Database
from penstock.sql.errors import Contended, DatabaseError, Denied, NoRoom, ReadOnly, TooLarge, Unreachable
from penstock.sql.group import DatabaseGroup
from penstock.sql.groups import DatabaseGroups
from penstock.storage.sql.engine import SqlEngine

if TYPE_CHECKING:
    from penstock.sql.passwords import PasswordKey

logger = logging.getLogger(__name__)

T = TypeVar("T")

NAMESPACE = "penstock"
"""The tree that brokers use, too."""
SESSION_MS = 10_000
"""How long the lease of a client outlives it."""
_POLL_S = 1.0
"""How often a client looks for changes of the metadata; it also looks whenever something is not as it expects."""
_OPEN_MS = 30_000
_CLOSE_S = 10.0
_MARGIN_S = 5.0
"""By so much a caller outwaits the database's own time limit."""
_TOPIC_DEFAULTS = MappingProxyType({STORAGE_SETTING: SHARED_STORAGE})


class Link:
    """Open as long as there is one: made by `open`, ended by `close`. Everything runs on one event loop."""

    def __init__(
        self,
        groups: DatabaseGroups,
        coordination: SqlCoordination,
        metadata: MetadataChanges,
        engine: SqlEngine,
        key: PasswordKey | None,
    ) -> None:
        self.groups = groups
        self.coordination = coordination
        self.metadata = metadata
        self.engine = engine
        """Makes the tables of partitions; no client reads or writes through the logs that it has open."""
        self.making = asyncio.Lock()
        self._key = key
        self._follow(metadata.image)
        self._unsubscribe = metadata.subscribe(self._image_changed)

    @classmethod
    async def open(
        cls, address: DatabaseAddress, partitions: int, connections: int, timeout_ms: int, key: PasswordKey | None
    ) -> Link:
        """`partitions`: of topics that are created without a number."""
        clock = SystemClock()
        database = await Database.open(address, connections=connections, timeout_ms=timeout_ms)
        groups = DatabaseGroups(database)
        coordination: SqlCoordination | None = None
        try:
            coordination = await SqlCoordination.open(address, NAMESPACE, SESSION_MS, clock, _OPEN_MS, _POLL_S)
            rules = TopicRules(default_partitions=partitions, needs_leader=False)
            metadata = MetadataChanges(
                coordination, MetadataSettings(None, NO_LEADER, rules=rules, topic_defaults=_TOPIC_DEFAULTS)
            )
            image = await metadata.start()
            engine = SqlEngine(groups, LogSettings(), Limits(), clock, cluster_id=image.cluster_id)
            await engine.prepare()
            groups.start()
            return cls(groups, coordination, metadata, engine, key)
        except BaseException:
            if coordination is not None:
                await coordination.close()
            await groups.close()
            raise

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    async def close(self) -> None:
        self._unsubscribe()
        await self.metadata.close()
        await self.engine.close()
        await self.coordination.close()
        await self.groups.close()

    def has_database(self, name: str) -> bool:
        """Whether this client can use a database group: it knows it, and has the key to its passwords."""
        return any(group.name == name for group in self.groups)

    @property
    def has_all_databases(self) -> bool:
        return all(map(self.has_database, self.image.databases))

    def config(self, topic: TopicImage) -> TopicConfig:
        """The settings of a topic as a broker without settings of its own sees them."""
        return effective_config(topic, topic_defaults(_TOPIC_DEFAULTS, self.image.settings_of(NO_LEADER)))

    def _follow(self, image: MetadataImage) -> None:
        follow_groups(self.groups, self._key, image.databases)

    def _image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        if old.databases != new.databases:
            self._follow(new)


class LinkThread:
    """Owns the event loop and the link. Thread-safe."""

    def __init__(
        self,
        address: DatabaseAddress,
        *,
        partitions: int,
        connections: int,
        timeout_ms: int,
        key_file: Path | None,
        name: str,
    ) -> None:
        """InvalidInput of the key file is a ConfigError here."""
        self.address = address
        self._partitions = partitions
        self._connections = connections
        self.timeout_ms = timeout_ms
        """How long a transaction may take."""
        self._key = None if key_file is None else _read_key(key_file)
        self._lock = threading.Lock()
        self._opened: Link | None = None
        self._opening: concurrent.futures.Future[Link] | None = None
        self._opening_task: asyncio.Task[Any] | None = None
        self._is_closed = False
        self._on_open: list[Callable[[Link], Coroutine[Any, Any, None]]] = []
        self._on_close: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def on_open(self, callback: Callable[[Link], Coroutine[Any, Any, None]]) -> None:
        """Runs on the loop when the link is there."""
        self._on_open.append(callback)

    def on_close(self, callback: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs on the loop before the link is closed."""
        self._on_close.append(callback)

    @property
    def link(self) -> Link:
        """Raises `StoreAwayError` while the database cannot be reached, `StoreRefusedError` if it cannot be used."""
        if self._opened is not None:
            return self._opened
        with self._lock:
            if self._is_closed:
                raise ClosedError("the client is closed")
            if self._opening is None or self._has_failed(self._opening):
                self._opening = asyncio.run_coroutine_threadsafe(self._open(), self._loop)
            opening = self._opening
        try:
            return opening.result(self.timeout_ms / 1000 + _MARGIN_S)
        except concurrent.futures.TimeoutError:
            raise StoreAwayError(f"{self.address} does not answer; still trying") from None
        except concurrent.futures.CancelledError:
            raise ClosedError("the client is closed") from None
        except PenstockError as error:
            raise store_error(error) from error

    @staticmethod
    def _has_failed(opening: concurrent.futures.Future[Link]) -> bool:
        return opening.done() and (opening.cancelled() or opening.exception() is not None)

    async def _open(self) -> Link:
        self._opening_task = asyncio.current_task()
        link = await Link.open(self.address, self._partitions, self._connections, self.timeout_ms, self._key)
        try:
            for callback in self._on_open:
                await callback(link)
        except BaseException:
            await link.close()
            raise
        self._opened = link
        return link

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run on the loop and wait for it. Raises errors of the store in place of those of databases."""
        under_way = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return under_way.result(timeout_s if timeout_s is not None else self.timeout_ms / 1000 + _MARGIN_S)
        except concurrent.futures.TimeoutError:
            under_way.cancel()
            raise StoreAwayError(f"{self.address} does not answer", is_outcome_unknown=True) from None
        except PenstockError as error:
            raise store_error(error) from error

    def change(self, database: str, work: Callable[[Connection], T]) -> T:
        """One transaction on the primary of a database group."""
        return self.call(self._change(self.group(database), work))

    async def change_soon(self, database: str, work: Callable[[Connection], T]) -> T:
        """The same for the tasks of another event loop, which does not wait. The link is there."""
        under_way = asyncio.run_coroutine_threadsafe(self._change(self.group(database), work), self._loop)
        try:
            return await asyncio.wrap_future(under_way)
        except PenstockError as error:
            raise store_error(error) from error

    def read(self, database: str, work: Callable[[Connection], T]) -> T:
        return self.call(self.group(database).read(work))

    def define(self, database: str, work: Callable[[Connection], T]) -> T:
        group = self.group(database)
        return self.call(group.define(work, group.generation))

    def group(self, database: str) -> DatabaseGroup:
        try:
            return self.link.groups[database]
        except DatabaseError as error:
            raise store_error(error) from error

    @property
    def default(self) -> str:
        return DEFAULT_DATABASE

    async def _change(self, group: DatabaseGroup, work: Callable[[Connection], T]) -> T:
        return await group.change(work, group.generation)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._loop.is_closed():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_CLOSE_S)
        except (concurrent.futures.TimeoutError, PenstockError) as error:
            logger.warning("%s could not be closed properly: %s", self.address, error)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)

    async def _end(self) -> None:
        if self._opening_task is not None and not self._opening_task.done():
            self._opening_task.cancel()
            await asyncio.wait([self._opening_task])
        for callback in self._on_close:
            await callback()
        if self._opened is not None:
            await self._opened.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


def store_error(error: PenstockError) -> PenstockError:
    """The error of the store that stands for one of the rooms below."""
    if isinstance(error, TooLarge | Denied | ConfigError):
        return StoreRefusedError(str(error))
    if isinstance(error, DatabaseError):
        return StoreAwayError(str(error), is_outcome_unknown=error.is_outcome_unknown)
    if isinstance(error, CoordinationError):
        return StoreAwayError(str(error))
    if isinstance(error, StorageError):
        # The engine says so of every error of a database; the client may try again after some of them.
        cause = error.__cause__
        if isinstance(cause, Unreachable | Contended | ReadOnly | NoRoom):
            return StoreAwayError(str(error), is_outcome_unknown=cause.is_outcome_unknown)
        return StoreRefusedError(str(error))
    return error


def _read_key(path: Path) -> PasswordKey:
    from penstock.sql.passwords import PasswordKey

    return PasswordKey.read(path)


def settings_of(topic: TopicImage) -> Mapping[str, str]:
    """What a topic was created with."""
    return topic.overrides
