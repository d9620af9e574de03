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
from penstock.replication.partition import Partition
from penstock.replication.placement import partition_for
from penstock.replication.replicas import Replicas
from penstock.replication.statelog import StateLog

logger = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")

_LOAD_WAIT_S = 5.0
"""How long somebody who needs a shard waits for it to be loaded before he is told to come again."""


class LoadedShard(Generic[S]):
    """One partition's state, its log, and the order in which its events are handled."""

    def __init__(self, index: int, state: S, log: StateLog) -> None:
        self.index = index
        self.state = state
        self.log = log
        self.turn = asyncio.Lock()
        self.is_loaded = False
        self.is_gone = False
        self.loading: asyncio.Task[None] | None = None


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
        lost: Callable[[S], None],
        adopted: Callable[[], None],
    ) -> None:
        """`load` replays a shard, in its turn; `lost` is told of one that another broker leads by now; `adopted` is
        called once, when the first shard is there.
        """
        self._topic = topic
        self._controller = controller
        self._replicas = replicas
        self._clock = clock
        self._make = make
        self._load = load
        self._lost = lost
        self._adopted = adopted
        self._began_ms = clock.now_ms() - int(clock.monotonic_ms())
        self._by_index: dict[int, LoadedShard[S]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()
        self._creating: asyncio.Task[None] | None = None
        self._has_adopted = False
        replicas.on_role(self._role_changed)

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
        return len(topic.partitions)

    def look(self) -> None:
        """Begins to load the shards of the partitions that this broker leads."""
        for partition in self._replicas:
            self._role_changed(partition)

    async def adopt(self) -> None:
        """Loads them; returns when they can be asked, or take too long."""
        await self._replicas.applied()
        self.look()
        loading = {shard.loading for shard in self if shard.loading is not None}
        if loading:
            await asyncio.wait(loading, timeout=_LOAD_WAIT_S)

    async def of(self, name: str) -> LoadedShard[S]:
        """The shard that looks after a name; ApiError if it is not here, or not yet."""
        index = partition_for(name, await self.prepare())
        shard = self._by_index.get(index)
        if shard is not None and not shard.is_loaded:
            await self._is_loaded(shard)
        return self.at(index)

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

    def _role_changed(self, partition: Partition) -> None:
        topic, index = partition.topic_partition
        if topic != self._topic.name:
            return
        held = self._by_index.get(index)
        leads = partition.leadership is not None and not partition.is_gone
        if held is not None and leads and held.log.partition is partition:
            return  # it goes on leading, in another epoch
        if held is not None:
            del self._by_index[index]
            held.is_gone = True
            self._lost(held.state)
        if leads and not self._stop.is_set():
            shard = LoadedShard(index, self._make(), StateLog(partition, self._clock))
            self._by_index[index] = shard
            if not self._has_adopted:
                self._has_adopted = True
                self._adopted()
            shard.loading = self.spawn(self._bring_back(shard), f"load {partition.topic_partition}")

    async def _bring_back(self, shard: LoadedShard[S]) -> None:
        partition = shard.log.partition
        if partition.log.end_offset > 0:
            # What a former leader has acknowledged is known to be so only when those in sync have fetched from us.
            await partition.passed(partition.log.end_offset - 1)
        async with shard.turn:
            if not shard.is_gone:
                await self._load(shard)

    async def _is_loaded(self, shard: LoadedShard[S]) -> None:
        """Waits a little for a shard that is being loaded."""
        if shard.loading is not None:
            await asyncio.wait({shard.loading}, timeout=_LOAD_WAIT_S)

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
