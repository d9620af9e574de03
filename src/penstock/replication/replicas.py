"""The partitions that this broker holds, kept in step with the metadata image.

Images are applied one after the other, in the background, and in each only the topics that differ from the one before
(`topic_updates.py`): a topic with thousands of partitions, or one whose logs are removed from a slow disk, does not
hold up the others. `applied` says when this broker has caught up with some topics, or with all, so that a topic is not
announced before it can be written to.

Of a topic in shared storage this broker holds what it leads, and nothing else (`shared_partitions.py`). If the leader
epoch changes, the log is closed and taken over again. Until that succeeds, clients are refused as by a broker that does
not lead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial

from penstock.cluster.metadata import MetadataImage, PartitionImage, TopicImage
from penstock.cluster.timer_topics import name_of, timer_topic
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code, StorageError
from penstock.gc_freeze import freezing
from penstock.ids import BrokerId, TopicId, TopicPartition, companion_of
from penstock.logs import fields
from penstock.replication.companion_pair import CompanionPair
from penstock.replication.delayed_records import NO_DELAYS, DelayedRecords
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.partition import Partition
from penstock.replication.shared_partitions import SharedPartitions, not_led
from penstock.replication.take_overs import release
from penstock.replication.topic_updates import TopicUpdates
from penstock.storage.companions import companion_config
from penstock.storage.contract import Engine, Log
from penstock.yielding import yielding

logger = logging.getLogger(__name__)

_TOPIC_ID_BYTES = 16
_MANY_PARTITIONS = 500
"""With so many new ones it pays to keep the garbage collector away."""
_FEW_PARTITIONS = 32
"""A topic with no more is given roles and settings at once; one with more, in turns with others."""

Effective = Callable[[TopicImage, MetadataImage], TopicConfig]
RoleCallback = Callable[[Partition], None]


class Replicas:
    """Partitions by topic and index, over all engines."""

    def __init__(
        self,
        broker: BrokerId,
        engines: Mapping[str, Engine],
        effective: Effective,
        lease: LeaderLease,
        lag_rules: LagRules,
        delayed_records: DelayedRecords = NO_DELAYS,
    ) -> None:
        self._broker = broker
        self._engines = engines
        self._effective = effective
        self._lease = lease
        self._lag_rules = lag_rules
        self._delayed_records = delayed_records
        self._on_role: list[RoleCallback] = []
        self._has_begun = False
        self._image: MetadataImage | None = None
        self._topics: dict[str, TopicImage] = {}
        """Topics as they have been applied; the image may be ahead of them."""
        self._partitions: dict[str, dict[int, Partition]] = {}
        self._names_by_id: dict[bytes, str] = {}
        self._updates = TopicUpdates()
        self._shared = SharedPartitions(broker, lag_rules, self._partition, self._tell, self._bring_again)

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._partitions.values():
            yield from partitions.values()

    @property
    def count(self) -> int:
        """How many partitions there are."""
        return sum(len(partitions) for partitions in self._partitions.values())

    @property
    def broker(self) -> BrokerId:
        return self._broker

    @property
    def shared_engines(self) -> list[Engine]:
        """The engines whose logs every broker reaches."""
        return [engine for engine in self._engines.values() if engine.is_shared]

    def now_ms(self) -> float:
        """The time by which leases, and what is heard from followers, are measured."""
        return self._lease.now_ms()

    def on_role(self, callback: RoleCallback) -> None:
        """Call back after a partition has begun to lead or to follow, or has gone."""
        self._on_role.append(callback)

    def followed(self) -> dict[BrokerId, dict[TopicPartition, Partition]]:
        """The partitions that follow, by the broker that they follow."""
        found: dict[BrokerId, dict[TopicPartition, Partition]] = {}
        for partition in self:
            if partition.leadership is None and partition.leader >= 0 and not partition.is_shared:
                found.setdefault(partition.leader, {})[partition.topic_partition] = partition
        return found

    async def open(self, image: MetadataImage) -> None:
        """Brings back every log of this broker, but for those in shared storage, which it does not lead yet."""
        wanted: dict[str, dict[TopicPartition, tuple[TopicId, TopicConfig]]] = {name: {} for name in self._engines}
        for topic in image.topics.values():
            if topic.is_shared:
                continue
            config = self._effective(topic, image)
            for partition in topic.partitions:
                if self._broker in partition.replicas:
                    at = TopicPartition(topic.name, partition.index)
                    wanted[config.storage][at] = (topic.id, config)
        for name, engine in self._engines.items():
            await engine.open(wanted[name])
        self._image = image
        self._shared.image_changed(image)
        for topic in image.topics.values():
            await self._adopt(topic)
            self._topics[topic.name] = topic

    async def begin(self) -> None:
        """This broker is a member of the cluster: from now on its partitions lead and follow.

        Not before: what the metadata said of a former self does not hold for this one.
        """
        self._updates.apply(self._begin)
        await self.applied()

    def find(self, topic: str, index: int) -> Partition:
        """The partition, or the error that a client gets when it is not here."""
        partitions = self._partitions.get(topic)
        if partitions is not None:
            partition = partitions.get(index)
            if partition is not None:
                return partition
        raise self._why_not(topic, index)

    def here(self, at: TopicPartition) -> Partition | None:
        """The partition, if this broker has it."""
        return self._partitions.get(at.topic, {}).get(at.partition)

    def topic_of(self, topic_id: bytes) -> str | None:
        """The name behind a topic id."""
        return self._names_by_id.get(topic_id)

    def seen_of(self, topic_id: bytes) -> str | None:
        """The name behind the id of a topic as clients see them: one that shows what waits in another has one too."""
        name = self._names_by_id.get(topic_id)
        if name is None and len(topic_id) == _TOPIC_ID_BYTES:
            name = name_of(TopicId(bytes=topic_id), lambda base: self._names_by_id.get(base.bytes))
        return name

    def change(self, old: MetadataImage, new: MetadataImage) -> None:
        """Takes a new image; what it asks for is done in the background, in order.

        But a leader of which the image says that it is none any more stops at once, however much there is to be done.
        """
        self._shared.image_changed(new)
        self._depose(old, new)
        self._updates.apply(partial(self._apply, new))

    @property
    def is_settled(self) -> bool:
        """Whether every image so far has been applied."""
        return self._updates.are_done

    def has_applied(self, topic: TopicImage) -> bool:
        """Whether all partitions of a topic that are for this broker can be used here."""
        held = self._topics.get(topic.name)
        return held is not None and held.id == topic.id and len(held.partitions) >= len(topic.partitions)

    def applied_partitions(self, topic: TopicImage) -> int:
        """How many partitions the topic has of which those that are for this broker can be used here."""
        held = self._topics.get(topic.name)
        return len(held.partitions) if held is not None and held.id == topic.id else 0

    @property
    def usable_topics(self) -> Iterable[str]:
        """The topics here; one that is still being made, or that goes, is none of them."""
        return self._topics

    async def applied(self, names: Iterable[str] | None = None) -> None:
        """Returns when every image so far has been applied, as far as it is about these topics; by default, all."""
        await self._updates.wait(names)

    async def late(self, names: Iterable[str], deadline: float) -> set[str]:
        """Waits for the same, until a time of the event loop; gives the topics that are not applied by then."""
        return await self._updates.wait(names, deadline)

    async def close(self) -> None:
        self._shared.close()
        while not self.is_settled:
            await self.applied()
        for partition in self:
            partition.go()
        securing = [partition for partition in self if partition.is_securing]
        self._partitions.clear()
        for engine in self._engines.values():
            await engine.close()
        for partition in securing:
            await partition.close()

    async def _begin(self) -> None:
        self._has_begun = True
        assert self._image is not None
        async for name, topic in yielding(self._image.topics.items()):
            self._bring(name, topic, self._image)

    async def _apply(self, image: MetadataImage) -> None:
        old = self._image
        assert old is not None
        self._image = image
        all_change = old.settings_of(self._broker) != image.settings_of(self._broker) or old.alive != image.alive
        gone = [name for name in old.topics if name not in image.topics]
        changed = [name for name, topic in image.topics.items() if all_change or old.topics.get(name) is not topic]
        async for name in yielding([*gone, *changed]):
            self._bring(name, image.topics.get(name), image)

    def _bring(self, name: str, topic: TopicImage | None, image: MetadataImage) -> None:
        """Has a topic brought to what an image says: at once if that is quickly done, else by a task of its own."""
        if topic is not None and not self._updates.has(name) and self._is_quick(topic):
            held = self._partitions.get(name, {})
            config = self._effective(topic, image)
            for partition in topic.partitions:
                self._settle(held.get(partition.index), partition, config, image)
            self._topics[name] = topic
            return
        self._updates.update(name, partial(self._update, name, topic, image))

    def _bring_again(self, name: str) -> bool:
        """Has a topic brought to the latest image once more; False if it is gone."""
        assert self._image is not None
        topic = self._image.topics.get(name)
        if topic is not None:
            self._bring(name, topic, self._image)
        return topic is not None

    def _is_quick(self, topic: TopicImage) -> bool:
        """Whether no log has to be made or removed, and there are few partitions."""
        if len(topic.partitions) > _FEW_PARTITIONS:
            return False
        before = self._topics.get(topic.name)
        if before is None or before.id != topic.id or len(before.partitions) > len(topic.partitions):
            return False
        held = self._partitions.get(topic.name, {})
        if topic.is_shared:
            epochs = {index: partition.leader_epoch for index, partition in held.items()}
            return epochs == self._led_epochs(topic) and not any(each.log.is_read_only for each in held.values())
        return all((self._broker in each.replicas) == (each.index in held) for each in topic.partitions)

    def _led_epochs(self, topic: TopicImage) -> dict[int, int]:
        """The partitions in shared storage that this broker leads, and in which epoch."""
        return self._shared.led_epochs(topic) if self._has_begun else {}

    async def _update(self, name: str, topic: TopicImage | None, image: MetadataImage) -> None:
        before = self._topics.get(name)
        if before is not None and (topic is None or before.id != topic.id):
            del self._topics[name]
            self._names_by_id.pop(before.id.bytes, None)
            await self._let_go(list(self._partitions.pop(name, {}).values()))
        if topic is None:
            return
        if topic.is_shared:
            await self._update_shared(topic, image)
            return
        config = self._effective(topic, image)
        held = self._partitions.setdefault(name, {})
        here = {each.index for each in topic.partitions if self._broker in each.replicas}
        await self._let_go([held.pop(index) for index in held.keys() - here])
        with freezing() if len(here) - len(held) >= _MANY_PARTITIONS else nullcontext():
            async for partition in yielding(topic.partitions):
                if partition.index in here and partition.index not in held:
                    await self._create(TopicPartition(name, partition.index), topic.id, config)
            await self._adopt(topic)
            async for partition in yielding(topic.partitions):
                self._settle(held.get(partition.index), partition, config, image)
        self._topics[name] = topic

    async def _update_shared(self, topic: TopicImage, image: MetadataImage) -> None:
        name, config = topic.name, self._effective(topic, image)
        held = self._partitions.setdefault(name, {})
        self._names_by_id[topic.id.bytes] = name
        engine = self._engines.get(config.storage)
        led = {} if engine is None else self._led_epochs(topic)
        await self._let_go([held.pop(index) for index in list(held) if index >= len(topic.partitions)])
        await self._let_go([held.pop(index) for index in not_led(held, led, topic, engine)], is_kept=True)
        if engine is not None:
            await self._shared.take_over(topic, led.keys() - held.keys(), held, image, engine, config)
        async for partition in yielding(topic.partitions):
            self._settle(held.get(partition.index), partition, config, image)
        self._topics[name] = topic
        self._shared.done(name, held, led)

    async def _create(self, at: TopicPartition, topic_id: TopicId, config: TopicConfig) -> None:
        try:
            await self._engines[config.storage].create(at, topic_id, config)
        except (OSError, StorageError) as error:
            logger.critical("log is offline", extra=fields(log=str(at), reason=str(error)))

    async def _let_go(self, partitions: list[Partition], *, is_kept: bool = False) -> None:
        """Empties the list: what a partition is in memory goes bit by bit, too.

        If `is_kept`, the logs are in shared storage and stay there.
        """
        logs: dict[Engine, list[TopicPartition]] = {engine: [] for engine in self._engines.values()}
        securing: list[Partition] = []
        async for _ in yielding(range(len(partitions))):
            partition = partitions.pop()
            at = partition.topic_partition
            partition.go()
            self._tell(partition)
            await self._delayed_records.gone(partition)
            if partition.is_securing:
                securing.append(partition)
            for engine, found in logs.items():
                found += (each for each in (at, companion_of(at)) if each in engine.logs)
        for engine, found in logs.items():
            if not found:
                continue
            try:
                await (engine.release(*found) if is_kept else engine.delete(*found))
            except (OSError, StorageError) as error:
                what = "could not release logs" if is_kept else "could not delete logs"
                logger.error(what, extra=fields(first=str(found[0]), error=str(error)))
        for partition in securing:
            await partition.close()

    def _depose(self, old: MetadataImage, new: MetadataImage) -> None:
        for name, held in self._partitions.items():
            topic, before = new.topics.get(name), old.topics.get(name)
            if topic is None or before is None or topic is before or topic.id != before.id:
                continue
            for image in topic.partitions:
                partition = held.get(image.index)
                if partition is None or partition.leadership is None or image.leader == self._broker:
                    continue
                if image.leader_epoch > partition.leader_epoch:
                    partition.follow(image.leader, image.leader_epoch)
                    self._tell(partition)

    def _settle(
        self, partition: Partition | None, image: PartitionImage, config: TopicConfig, of: MetadataImage
    ) -> None:
        """Gives a partition the settings and the role that an image says."""
        if partition is None:
            return
        partition.log.configure(config)
        companion = partition.pair.companion
        if companion is not None:
            companion.configure(companion_config(config))
        if not self._has_begun or image.leader_epoch < partition.leader_epoch:
            return  # not a member yet, or of an image that is older than one by which it was deposed
        before = partition.leader_epoch
        if image.leader == self._broker:
            partition.lead(self._broker, image, of.alive, self._lag_rules)
        else:
            partition.follow(image.leader, image.leader_epoch)
        if partition.leader_epoch != before:
            self._tell(partition)

    def _tell(self, partition: Partition) -> None:
        for callback in self._on_role:
            callback(partition)

    async def _adopt(self, topic: TopicImage) -> None:
        partitions = self._partitions.setdefault(topic.name, {})
        self._names_by_id[topic.id.bytes] = topic.name
        if topic.is_shared:
            return
        engines = [(engine, engine.logs) for engine in self._engines.values()]
        async for image in yielding(topic.partitions):
            if image.index in partitions:
                continue
            at = TopicPartition(topic.name, image.index)
            for engine, logs in engines:
                log = logs.get(at)
                if log is not None:
                    partitions[image.index] = self._partition(log, engine, topic)

    def _partition(self, log: Log, engine: Engine, topic: TopicImage) -> Partition:
        at = companion_of(log.topic_partition)

        async def make() -> Log:
            companion = await engine.create(at, log.topic_id, companion_config(log.config))
            if engine.is_shared:
                try:
                    await companion.take_over(partition.leader_epoch)
                except BaseException:
                    await release(engine, at)
                    raise
            return companion

        delayed_records = NO_DELAYS if topic.is_internal else self._delayed_records
        pair = CompanionPair(log, engine.logs.get(at), make)
        partition = Partition(log, self._lease, pair, delayed_records, is_shared=engine.is_shared)
        return partition

    def _why_not(self, topic: str, index: int) -> ApiError:
        known = self._image.topics.get(topic) if self._image else None
        if (shown := timer_topic(topic)) is not None:
            reason = f"{topic} shows what waits in {shown.base} and can only be read: send to {shown.base}"
            return ApiError(Code.INVALID_TOPIC_EXCEPTION, reason)
        if known is not None and known.view_of is not None:
            reason = f"{topic} is a view of {known.view_of} and has no log of its own: send to {known.view_of}"
            return ApiError(Code.INVALID_TOPIC_EXCEPTION, reason)
        if known is None or not 0 <= index < len(known.partitions):
            return ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        if self._is_coming(known, index):
            return ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        if known.is_shared:
            return ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} is not led here, or not yet")
        if self._broker not in known.partitions[index].replicas or self._topics.get(topic) is not known:
            # Or its log is being made: a client that retries finds it.
            return ApiError(Code.NOT_LEADER_OR_FOLLOWER)
        return ApiError(Code.KAFKA_STORAGE_ERROR, f"{topic}-{index} is offline; the broker's log says why")

    def _is_coming(self, topic: TopicImage, index: int) -> bool:
        """Whether a partition is new and its log is still being made; other brokers may tell clients that it leads
        here.
        """
        if topic.partitions[index].leader != self._broker:
            return False
        applied = self._topics.get(topic.name)
        return applied is None or applied.id != topic.id or index >= len(applied.partitions)
