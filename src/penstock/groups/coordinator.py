"""The coordinator: the shell around the shards. It loads them, gives them their events in turn, appends and answers.

Rules:
- An event's records are appended before anything of it is seen: durable state and replies follow the append. If that
  fails, those who would have been answered are told to try again.
- What has begun is carried out, even if the client that asked for it has gone: log and state must not part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import OFFSETS_TOPIC, MetadataImage
from penstock.cluster.topics import NewTopic
from penstock.config.broker import GroupSettings
from penstock.errors import ApiError, Code, CoordinationError, PenstockError, StorageError
from penstock.groups.classic import ClassicGroup
from penstock.groups.events import Heartbeat, Join, Joined, Leaver, Outcome, Sync, Synced
from penstock.groups.offsets import Committed
from penstock.groups.placement import partition_for
from penstock.groups.records import decode, encode
from penstock.groups.rules import GroupRules, OffsetRules
from penstock.groups.shard import Record, Shard
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.replication.replicas import Replicas
from penstock.replication.statelog import StateLog, StateRecord

logger = logging.getLogger(__name__)

_TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(100 << 20),
    "max.message.bytes": str(16 << 20),
    "compression.type": "producer",
}
_TICK_S = 0.05
_BATCH_BYTES = 1 << 20
"""Records of one event that are appended together; more of them (a group with very many offsets) go in parts."""
_TOO_LARGE = (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)

T = TypeVar("T")
A = TypeVar("A", Joined, Synced)


class LoadedShard:
    """A shard, its log, and the order in which its events are handled."""

    def __init__(self, shard: Shard, log: StateLog) -> None:
        self.shard = shard
        self.log = log
        self.turn = asyncio.Lock()
        self.is_loaded = False
        self.is_gone = False


class GroupCoordinator:
    """All groups of this broker."""

    def __init__(
        self,
        controller: Controller,
        replicas: Replicas,
        settings: GroupSettings,
        clock: Clock,
        new_member_id: Callable[[str], str],
    ) -> None:
        self._controller = controller
        self._replicas = replicas
        self._settings = settings
        self._clock = clock
        self._began_ms = clock.now_ms() - int(clock.monotonic_ms())
        self._group_rules = GroupRules(
            min_session_timeout_ms=settings.min_session_timeout_ms,
            max_session_timeout_ms=settings.max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.initial_rebalance_delay_ms,
            max_members=settings.max_members,
            max_bytes=settings.group_bytes,
            new_member_id=new_member_id,
        )
        self._offset_rules = OffsetRules(
            max_metadata_bytes=settings.offset_metadata_bytes,
            retention_ms=settings.offsets_retention_ms,
            max_offsets=settings.offsets_per_group,
            max_groups=settings.groups_per_partition,
        )
        self._shards: dict[int, LoadedShard] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()
        self._creating: asyncio.Task[None] | None = None
        self._keeps_time = False

    async def start(self) -> None:
        """Loads the shards that this broker has."""
        await self._adopt_shards()

    def release(self) -> None:
        """The broker is about to stop: nobody waits for a rebalance any more."""
        self._stop.set()
        for loaded in self._shards.values():
            _answer(loaded.shard.abandon(Code.COORDINATOR_NOT_AVAILABLE).replies)

    async def close(self) -> None:
        self.release()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def topics_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """The offsets of a deleted topic go with it."""
        gone = frozenset(
            name for name, topic in old.topics.items() if name not in new.topics or new.topics[name].id != topic.id
        )
        if not gone or self._stop.is_set():
            return
        if OFFSETS_TOPIC in gone:
            self._lose_shards()
        else:
            self._spawn(self._forget_topics(gone), "offsets of deleted topics")

    async def prepare(self) -> int:
        """Makes sure that the internal topic is there; gives its number of partitions."""
        topic = self._controller.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            if self._creating is None or self._creating.done():
                self._creating = self._spawn(self._create_topic(), f"create {OFFSETS_TOPIC}")
            try:
                await asyncio.shield(self._creating)
            except CoordinationError as error:
                raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, str(error)) from error
            topic = self._controller.image.topics[OFFSETS_TOPIC]
        if len(self._shards) < len(topic.partitions):
            await self._adopt_shards()
        return len(topic.partitions)

    def groups(self) -> Iterable[ClassicGroup]:
        """Every group with members or a past, and those that only have offsets."""
        for loaded in self._shards.values():
            yield from loaded.shard.groups.values()
            for group_id in loaded.shard.offsets.keys() - loaded.shard.groups.keys():
                yield ClassicGroup(group_id, self._group_rules)

    async def find(self, group_id: str) -> ClassicGroup | None:
        """The group as it is now; one that only has offsets is empty."""
        shard = (await self._shard_of(group_id)).shard
        group = shard.groups.get(group_id)
        if group is None and group_id in shard.offsets:
            return ClassicGroup(group_id, self._group_rules)
        return group

    async def join(self, group_id: str, make: Callable[[object], Join]) -> Joined:
        return await self._ask(group_id, lambda shard, token, now: shard.join(group_id, make(token), now), Joined)

    async def sync(self, group_id: str, make: Callable[[object], Sync]) -> Synced:
        return await self._ask(group_id, lambda shard, token, now: shard.sync(group_id, make(token), now), Synced)

    async def heartbeat(self, group_id: str, event: Heartbeat) -> Code:
        loaded = await self._shard_of(group_id)
        return loaded.shard.heartbeat(group_id, event, self._now_ms())

    async def leave(self, group_id: str, leavers: tuple[Leaver, ...]) -> list[Code]:
        return await self._change(group_id, lambda shard, now_ms: shard.leave(group_id, leavers, now_ms))

    async def commit(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        offsets: Mapping[TopicPartition, Committed],
    ) -> tuple[Code | None, dict[TopicPartition, Code]]:
        def work(shard: Shard, now_ms: int) -> tuple[tuple[Code | None, dict[TopicPartition, Code]], Outcome]:
            refusal, codes, outcome = shard.commit(group_id, member, offsets, now_ms)
            return (refusal, codes), outcome

        return await self._change(group_id, work)

    async def fetch(
        self, group_id: str, wanted: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, Committed | None]:
        return (await self._shard_of(group_id)).shard.fetch(group_id, wanted)

    async def delete_group(self, group_id: str) -> Code:
        loaded = await self._shard_of(group_id)
        # A member whose session is over does not keep its group until the next look.
        await asyncio.shield(self._spawn(self._look_after(loaded, self._end_what_is_over), f"look at {group_id}"))
        return await self._change(group_id, lambda shard, now_ms: shard.delete_group(group_id))

    async def delete_offsets(
        self, group_id: str, wanted: Iterable[TopicPartition]
    ) -> tuple[Code, dict[TopicPartition, Code]]:
        def work(shard: Shard, now_ms: int) -> tuple[tuple[Code, dict[TopicPartition, Code]], Outcome]:
            code, codes, outcome = shard.delete_offsets(group_id, wanted)
            return (code, codes), outcome

        return await self._change(group_id, work)

    def _now_ms(self) -> int:
        """The time by which sessions end: it goes on evenly, whatever is done to the machine's clock."""
        return self._began_ms + int(self._clock.monotonic_ms())

    async def _ask(
        self, group_id: str, handle: Callable[[Shard, object, int], Outcome], answer_type: Callable[..., A]
    ) -> A:
        """Hands over an event that may be answered later, and waits for its answer."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        try:
            await self._change(group_id, lambda shard, now_ms: (None, handle(shard, answer, now_ms)))
        except ApiError as error:
            if not answer.done():
                return answer_type(code=error.code)
        return await answer

    async def _change(self, group_id: str, work: Callable[[Shard, int], tuple[T, Outcome]]) -> T:
        """Does something to a group, in turn; raises ApiError if it could not be written."""
        loaded = await self._shard_of(group_id)

        async def change() -> T:
            async with loaded.turn:
                if loaded.is_gone or self._stop.is_set():
                    raise ApiError(Code.NOT_COORDINATOR)
                result, outcome = work(loaded.shard, self._now_ms())
                await self._carry_out(loaded, outcome)
                return result

        return await asyncio.shield(self._spawn(change(), f"change of {group_id}"))

    async def _carry_out(self, loaded: LoadedShard, outcome: Outcome) -> None:
        """Appends, takes in, answers; the caller has the turn."""
        try:
            for part, encoded in _parts(outcome.records):
                await loaded.log.append(encoded)
                now_ms = self._now_ms()
                for record in part:
                    loaded.shard.apply(record, now_ms)
        except (ApiError, StorageError) as error:
            logger.error("group change not written", extra=fields(error=str(error)))
            is_too_large = isinstance(error, ApiError) and error.code in _TOO_LARGE
            code = Code.UNKNOWN_SERVER_ERROR if is_too_large else Code.COORDINATOR_NOT_AVAILABLE
            _answer([(token, type(answer)(code=code)) for token, answer in outcome.replies])
            _answer(loaded.shard.not_written(outcome.records, self._now_ms()).replies)
            raise ApiError(code, str(error)) from error
        _answer(outcome.replies)

    async def _shard_of(self, group_id: str) -> LoadedShard:
        partitions = await self.prepare()
        loaded = self._shards.get(partition_for(group_id, partitions))
        if loaded is None:
            raise ApiError(Code.NOT_COORDINATOR)
        if not loaded.is_loaded:
            raise ApiError(Code.COORDINATOR_LOAD_IN_PROGRESS)
        return loaded

    async def _create_topic(self) -> None:
        topic = NewTopic(name=OFFSETS_TOPIC, partitions=self._settings.offsets_partitions, overrides=_TOPIC_SETTINGS)
        result = (await self._controller.create_topics([topic]))[OFFSETS_TOPIC]
        if isinstance(result, ApiError) and result.code is not Code.TOPIC_ALREADY_EXISTS:
            raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, str(result)) from result
        await self._replicas.applied()

    async def _adopt_shards(self) -> None:
        await self._replicas.applied()
        topic = self._controller.image.topics.get(OFFSETS_TOPIC)
        for image in topic.partitions if topic is not None else ():
            if image.index in self._shards:
                continue
            try:
                partition = self._replicas.find(OFFSETS_TOPIC, image.index)
            except ApiError as error:
                logger.error("groups not loaded", extra=fields(partition=image.index, reason=str(error)))
                continue
            loaded = LoadedShard(Shard(self._group_rules, self._offset_rules), StateLog(partition, self._clock))
            self._shards[image.index] = loaded
            if not self._keeps_time:
                self._keeps_time = True
                check_s = self._settings.offsets_check_ms / 1000
                self._spawn(self._every(_TICK_S, self._is_due, self._end_what_is_over), "group sessions")
                self._spawn(self._every(check_s, lambda loaded: True, self._expire), "offset expiry")
            await self._load(loaded)

    async def _load(self, loaded: LoadedShard) -> None:
        async with loaded.turn:
            async for _, records in loaded.log.replay():
                for record in records:
                    change = decode(record)
                    if change is not None:
                        loaded.shard.apply(change, self._now_ms())
            loaded.shard.loaded(self._now_ms())
            loaded.is_loaded = True
            try:
                # A topic may have been deleted just before a crash; one of the same name must not find its offsets.
                await self._carry_out(loaded, loaded.shard.forget_topics(self._is_unknown))
            except ApiError:
                return  # said where it happened; expiry tries again

    def _is_unknown(self, topic: str) -> bool:
        return topic not in self._controller.image.topics

    def _lose_shards(self) -> None:
        for loaded in self._shards.values():
            loaded.is_gone = True
            _answer(loaded.shard.abandon(Code.NOT_COORDINATOR).replies)
        self._shards.clear()

    async def _forget_topics(self, gone: frozenset[str]) -> None:
        for loaded in list(self._shards.values()):
            async with loaded.turn:
                await self._carry_out(loaded, loaded.shard.forget_topics(gone.__contains__))

    def _is_due(self, loaded: LoadedShard) -> bool:
        """Looked at without waiting for the turn: a shard that is busy writing does not hold up the others."""
        return loaded.shard.is_due(self._now_ms())

    async def _end_what_is_over(self, loaded: LoadedShard) -> None:
        for outcome in loaded.shard.tick(self._now_ms()):
            try:
                await self._carry_out(loaded, outcome)
            except ApiError:
                continue  # said where it happened; what is over stays over

    async def _expire(self, loaded: LoadedShard) -> None:
        await self._carry_out(loaded, loaded.shard.forget_topics(self._is_unknown))
        await self._carry_out(loaded, loaded.shard.expire(self._now_ms()))

    async def _every(
        self,
        seconds: float,
        is_wanted: Callable[[LoadedShard], bool],
        work: Callable[[LoadedShard], Awaitable[None]],
    ) -> None:
        while not self._stop.is_set():
            try:
                await asyncio.wait_for(self._stop.wait(), seconds)
            except TimeoutError:
                for loaded in list(self._shards.values()):
                    if loaded.is_loaded and is_wanted(loaded):
                        await self._look_after(loaded, work)

    async def _look_after(self, loaded: LoadedShard, work: Callable[[LoadedShard], Awaitable[None]]) -> None:
        async with loaded.turn:
            try:
                await work(loaded)
            except ApiError:
                return  # said where it happened; the next look tries again
            except Exception:
                # Without this loop no session would ever end: one group's trouble must not be everybody's.
                logger.exception("looking after groups failed")

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PenstockError):
            # The others were said where they happened, and whoever waits for the task gets them.
            logger.error("a change of groups failed", exc_info=error)


def _parts(records: list[Record]) -> Iterator[tuple[list[Record], list[StateRecord]]]:
    """The records as they are and as they are written, so many at once as go into a batch."""
    part: list[Record] = []
    encoded: list[StateRecord] = []
    size = 0
    for record in records:
        written = encode(record)
        written_bytes = len(written.key) + len(written.value or b"")
        if part and size + written_bytes > _BATCH_BYTES:
            yield part, encoded
            part, encoded, size = [], [], 0
        part.append(record)
        encoded.append(written)
        size += written_bytes
    if part:
        yield part, encoded


def _answer(replies: Iterable[tuple[object, Joined | Synced]]) -> None:
    for token, answer in replies:
        assert isinstance(token, asyncio.Future)
        if not token.done():
            token.set_result(answer)
