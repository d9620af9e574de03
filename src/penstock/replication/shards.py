"""An internal topic as states, one a partition: made on demand, rebuilt by replay, changed one event after the other.

The shell that coordinators share. A shard's machine is theirs; who may touch it when, and what happens to work that has
begun when a client goes or the broker stops, is decided here:
- Whoever changes a shard has its turn, from before it looks until its records are appended and taken in.
- What has begun is carried out, even if the client that asked for it has gone: log and state must not part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

from penstock.clock import Clock
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import MetadataImage
from penstock.cluster.topics import NewTopic
from penstock.errors import ApiError, Code, CoordinationError, PenstockError
from penstock.logs import fields
from penstock.net import eager
from penstock.replication.placement import partition_for
from penstock.replication.replicas import Replicas
from penstock.replication.statelog import StateLog

logger = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")


class LoadedShard(Generic[S]):
    """One partition's state, its log, and the order in which its events are handled."""

    def __init__(self, index: int, state: S, log: StateLog) -> None:
        self.index = index
        self.state = state
        self.log = log
        self.turn = asyncio.Lock()
        self.is_loaded = False
        self.is_gone = False


class Shards(Generic[S]):
    """The shards of one internal topic that this broker leads."""

    def __init__(
        self,
        topic: NewTopic,
        controller: Controller,
        replicas: Replicas,
        clock: Clock,
        make: Callable[[], S],
        load: Callable[[LoadedShard[S]], Awaitable[None]],
        adopted: Callable[[], None],
    ) -> None:
        """`load` replays a shard, in its turn; `adopted` is called once, when the first shard is there."""
        self._topic = topic
        self._controller = controller
        self._replicas = replicas
        self._clock = clock
        self._make = make
        self._load = load
        self._adopted = adopted
        self._began_ms = clock.now_ms() - int(clock.monotonic_ms())
        self._by_index: dict[int, LoadedShard[S]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()
        self._creating: asyncio.Task[None] | None = None
        self._has_adopted = False

    def __iter__(self) -> Iterator[LoadedShard[S]]:
        return iter(tuple(self._by_index.values()))

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def now_ms(self) -> int:
        """The time by which things end: it goes on evenly, whatever is done to the machine's clock."""
        return self._began_ms + int(self._clock.monotonic_ms())

    def release(self) -> None:
        """The broker is about to stop: nothing new begins."""
        self._stop.set()

    async def close(self) -> None:
        """Returns when everything that has begun is done."""
        self.release()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def prepare(self) -> int:
        """Makes sure that the internal topic is there; gives its number of partitions."""
        name = self._topic.name
        topic = self._controller.image.topics.get(name)
        if topic is None:
            if self._creating is None or self._creating.done():
                self._creating = self.spawn(self._create_topic(), f"create {name}")
            try:
                await asyncio.shield(self._creating)
            except CoordinationError as error:
                raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, str(error)) from error
            topic = self._controller.image.topics[name]
        if len(self._by_index) < len(topic.partitions):
            await self.adopt()
        return len(topic.partitions)

    async def adopt(self) -> None:
        """Loads the shards of the partitions that are here."""
        await self._replicas.applied()
        name = self._topic.name
        topic = self._controller.image.topics.get(name)
        for image in topic.partitions if topic is not None else ():
            if image.index in self._by_index:
                continue
            try:
                partition = self._replicas.find(name, image.index)
            except ApiError as error:
                logger.error("state not loaded", extra=fields(topic=name, partition=image.index, reason=str(error)))
                continue
            shard = LoadedShard(image.index, self._make(), StateLog(partition, self._clock))
            self._by_index[image.index] = shard
            if not self._has_adopted:
                self._has_adopted = True
                self._adopted()
            async with shard.turn:
                await self._load(shard)

    async def of(self, name: str) -> LoadedShard[S]:
        """The shard that looks after a name; ApiError if it is not here, or not yet."""
        return self.at(partition_for(name, await self.prepare()))

    def at(self, index: int) -> LoadedShard[S]:
        shard = self._by_index.get(index)
        if shard is None:
            raise ApiError(Code.NOT_COORDINATOR)
        if not shard.is_loaded:
            raise ApiError(Code.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    async def change(self, shard: LoadedShard[S], work: Callable[[S], Awaitable[T]], name: str) -> T:
        """Does something to a shard, in its turn."""

        async def change() -> T:
            async with shard.turn:
                if shard.is_gone or self._stop.is_set():
                    raise ApiError(Code.NOT_COORDINATOR)
                return await work(shard.state)

        started = eager.start(asyncio.get_running_loop(), change())
        if not isinstance(started, asyncio.Task):
            return started
        started.set_name(name)
        return await asyncio.shield(self._watched(started))

    def lose(self) -> list[S]:
        """The topic is gone, and with it every shard; gives what there was."""
        lost = [shard.state for shard in self]
        for shard in self:
            shard.is_gone = True
        self._by_index.clear()
        return lost

    def every(
        self,
        seconds: float,
        is_wanted: Callable[[S], bool],
        work: Callable[[LoadedShard[S]], Awaitable[None]],
        name: str,
    ) -> None:
        """Looks after the shards from now on; `is_wanted` is asked without the turn, so that a shard that is busy
        writing does not hold up the others.
        """

        async def look() -> None:
            while not self._stop.is_set():
                try:
                    await asyncio.wait_for(self._stop.wait(), seconds)
                except TimeoutError:
                    for shard in self:
                        if shard.is_loaded and is_wanted(shard.state):
                            await self.look_after(shard, work)

        self.spawn(look(), name)

    async def look_after(self, shard: LoadedShard[S], work: Callable[[LoadedShard[S]], Awaitable[None]]) -> None:
        async with shard.turn:
            try:
                await work(shard)
            except ApiError:
                return  # said where it happened; the next look tries again
            except Exception:
                # Without this loop nothing would ever end: one shard's trouble must not be everybody's.
                logger.exception("looking after a shard failed", extra=fields(topic=self._topic.name))

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Work that is waited for when the broker stops."""
        return self._watched(asyncio.get_running_loop().create_task(work, name=name))

    def topics_gone(self, old: MetadataImage, new: MetadataImage) -> frozenset[str]:
        """The topics that a change of the metadata has removed; one made anew under its name is another topic."""
        return frozenset(
            name for name, topic in old.topics.items() if name not in new.topics or new.topics[name].id != topic.id
        )

    async def _create_topic(self) -> None:
        name = self._topic.name
        result = (await self._controller.create_topics([self._topic]))[name]
        if isinstance(result, ApiError) and result.code is not Code.TOPIC_ALREADY_EXISTS:
            raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, str(result)) from result
        await self._replicas.applied()

    def _watched(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PenstockError):
            # The others were said where they happened, and whoever waits for the task gets them.
            logger.error("a change of a shard failed", exc_info=error)
