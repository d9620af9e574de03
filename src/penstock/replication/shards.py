"""An internal topic as states, one a partition: made on demand, rebuilt by replay, changed one event after the other.

The shell that coordinators share. A shard's machine is theirs. This module decides which task may touch it when, and
what happens to work that has begun when a client goes or the broker stops:
- Changes of a shard take turns, each from before it reads the state until its records are appended and taken in.
- A change that has begun is carried out, even if its client has gone: log and state must not differ.
- No request is answered from the state of a shard that another broker may have changed since: see "Answers of a leader"
  in `docs/internals/cluster.md`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from penstock.background_loop import shielded
from penstock.clock import Clock
from penstock.cluster.decisions.topics import TopicCreation
from penstock.cluster.metadata import MetadataImage
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code, CoordinationError, PenstockError
from penstock.logs import fields
from penstock.net import eager
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.lost_records import LostRange
from penstock.replication.partition import Partition
from penstock.replication.placement import partition_for
from penstock.replication.replicas import Replicas
from penstock.replication.state_log import StateLog

logger = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")

STATE_TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(100 << 20),
    "max.message.bytes": str(16 << 20),
    "compression.type": "producer",
}
"""Of an internal topic whose partitions are shards."""
_LOAD_AGAIN_S, _LOAD_AGAIN_AT_MOST_S = 1.0, 30.0
_NAMES_SHOWN = 100
_CLOSE_S = 5.0
_LOAD_WAIT_S = 5.0
"""How long a request waits for its shard to be loaded before the broker tells the client to retry."""


class LoadedShard(Generic[S]):
    """One partition's state, its log, and the order in which its events are handled."""

    def __init__(self, index: int, state: S, log: StateLog) -> None:
        self.index = index
        self.state = state
        self.log = log
        self.turn = asyncio.Lock()
        self.is_loaded = False
        self.is_gone = False
        self.is_asked_for = False
        """About something in it, by its name: it is going to be written to."""
        self.loading: asyncio.Task[None] | None = None


class Shards(Generic[S]):
    """The shards of one internal topic that this broker leads."""

    def __init__(
        self,
        topic: TopicCreation,
        metadata: MetadataChanges,
        replicas: Replicas,
        clock: Clock,
        make: Callable[[], S],
        load: Callable[[LoadedShard[S]], Awaitable[None]],
        lost: Callable[[S], None],
        adopted: Callable[[], None],
        repair: DamageRepair,
    ) -> None:
        """`load` replays a shard, in its turn; `lost` is called with one that another broker leads by now; `adopted` is
        called once, when the first shard is there.
        """
        self._topic = topic
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._make = make
        self._load = load
        self._lost = lost
        self._adopted = adopted
        self._repair = repair
        self.lost_ranges = 0
        """Parts of the topic that could not be read when a shard was loaded, and of which no replica has a copy."""
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
        """Lets changes that have begun finish for a while.

        They may wait for followers that are away. A change that is in the log by then is applied by the broker that
        loads the shard next.
        """
        self.release()
        if not self._tasks:
            return
        _, unfinished = await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        if unfinished:
            logger.warning(
                "stopping before these changes are replicated",
                extra=fields(topic=self._topic.name, changes=", ".join(sorted(task.get_name() for task in unfinished))),
            )
            for task in unfinished:
                task.cancel()
            await asyncio.wait(unfinished)

    async def prepare(self) -> int:
        """Makes sure that the internal topic is there; gives its number of partitions."""
        name = self._topic.name
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            if self._creating is None or self._creating.done():
                self._creating = self.spawn(self._create_topic(), f"create {name}")
            try:
                await shielded(self._creating)
            except CoordinationError as error:
                raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, str(error)) from error
            topic = self._metadata.image.topics[name]
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
        if shard is None and self._is_coming(index):
            coming = self.spawn(self._replicas.applied([self._topic.name]), f"apply metadata of {self._topic.name}")
            await asyncio.wait({coming}, timeout=_LOAD_WAIT_S)
            shard = self._by_index.get(index)
        if shard is not None and not shard.is_loaded:
            await self._is_loaded(shard)
        shard = self.at(index)
        try:
            await shard.log.partition.confirm_leads()
        except ApiError as error:
            raise ApiError(Code.NOT_COORDINATOR, str(error)) from error
        if not shard.is_asked_for:
            shard.is_asked_for = True
            self.spawn(_make_files(shard), f"make files of {shard.log.partition.topic_partition}")
        return shard

    def at(self, index: int) -> LoadedShard[S]:
        shard = self._by_index.get(index)
        if shard is None and not self._is_coming(index):
            raise ApiError(Code.NOT_COORDINATOR)
        if shard is None or not shard.is_loaded:
            raise ApiError(Code.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def _is_coming(self, index: int) -> bool:
        """Whether this broker leads a shard's partition by the metadata, which others tell clients too."""
        topic = self._metadata.image.topics.get(self._topic.name)
        if topic is None or index >= len(topic.partitions) or self._stop.is_set():
            return False
        return topic.partitions[index].leader == self._replicas.broker

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
        return await shielded(self._watched(started))

    def every(
        self,
        seconds: float,
        is_wanted: Callable[[S], bool],
        work: Callable[[LoadedShard[S]], Awaitable[None]],
        name: str,
    ) -> None:
        """Looks after the shards from now on; it calls `is_wanted` without the turn, so that a shard that is busy
        writing does not hold up the others.
        """

        async def look() -> None:
            while not self._stop.is_set():
                try:
                    async with asyncio.timeout(seconds):
                        await self._stop.wait()
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
                # Without this loop nothing would ever end: trouble of one shard must not stop it for all.
                logger.exception("background work of a shard failed", extra=fields(topic=self._topic.name))

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
            shard = LoadedShard(index, self._make(), StateLog(partition, self._clock, self._repair))
            self._by_index[index] = shard
            if not self._has_adopted:
                self._has_adopted = True
                self._adopted()
            shard.loading = self.spawn(self._bring_back(shard), f"load {partition.topic_partition}")

    def report_lost(self, shard: LoadedShard[S], lost: LostRange, names: Collection[str]) -> None:
        """Says what a shard is without: whose records, as far as it can be made out, and where they were."""
        self.lost_ranges += 1
        shown = sorted(names)
        logger.critical(
            "records of an internal topic are damaged and no other replica has them: loading the shard without them",
            extra=fields(
                log=str(shard.log.partition.topic_partition),
                from_offset=lost.damage.first_offset,
                to_offset=lost.damage.resumes_at - 1,
                bytes=lost.damage.size,
                records_of=", ".join(shown[:_NAMES_SHOWN]) or "unknown",
                and_others=max(0, len(shown) - _NAMES_SHOWN),
                are_all_named=lost.is_complete,
            ),
        )

    async def _bring_back(self, shard: LoadedShard[S]) -> None:
        partition = shard.log.partition
        if partition.log.end_offset > 0:
            # What a former leader has acknowledged is known to be so only when those in sync have fetched from us.
            await partition.passed(partition.log.end_offset - 1)
        wait_s = _LOAD_AGAIN_S
        async with shard.turn:
            while not (shard.is_gone or shard.is_loaded or self._stop.is_set()):
                try:
                    await self._load(shard)
                    return
                except Exception as error:
                    # Without this the shard would stay unloaded, without a line in the log that says why.
                    logger.error(
                        "could not load a shard of an internal topic: its groups or transactions are not served",
                        extra=fields(
                            log=str(partition.topic_partition), reason=str(error) or repr(error), again_after_s=wait_s
                        ),
                        exc_info=None if isinstance(error, PenstockError) else error,
                    )
                shard.state = self._make()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._stop.wait()
                wait_s = min(2 * wait_s, _LOAD_AGAIN_AT_MOST_S)

    async def _is_loaded(self, shard: LoadedShard[S]) -> None:
        """Waits a little for a shard that is being loaded."""
        if shard.loading is not None:
            await asyncio.wait({shard.loading}, timeout=_LOAD_WAIT_S)

    async def _create_topic(self) -> None:
        name = self._topic.name
        result = (await self._metadata.create_topics([self._topic]))[name]
        if isinstance(result, ApiError) and result.code is not Code.TOPIC_ALREADY_EXISTS:
            raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, str(result)) from result
        await self._replicas.applied([name])

    def _watched(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PenstockError):
            # The others were logged where they happened, and the caller that waits for the task gets them.
            logger.error("a change of a shard failed", exc_info=error)


async def _make_files(shard: LoadedShard[Any]) -> None:
    """Files are made at the first write, and that takes several syncs: they are made while clients still get to know
    each other.
    """
    with suppress(PenstockError, OSError):  # the first write raises it again
        await shard.log.partition.log.prepare_write()
