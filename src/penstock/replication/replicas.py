"""The partitions that this broker holds, kept in step with the metadata image.

A change of the image is applied in the background, one after the other; `applied` says when this broker has caught up,
so that a topic is not announced as created before it can be written to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

from penstock.cluster.metadata import MetadataImage, TopicImage
from penstock.cluster.timer_topics import name_of, timer_topic
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import BrokerId, TopicId, TopicPartition, companion_of
from penstock.logs import fields
from penstock.replication.beside import Beside
from penstock.replication.delaying import NO_DELAYS, Delaying
from penstock.replication.leadership import LagRules
from penstock.replication.partition import Partition
from penstock.replication.tenure import Tenure
from penstock.storage.companions import companion_config
from penstock.storage.contract import Engine, Log

logger = logging.getLogger(__name__)

_TOPIC_ID_BYTES = 16

Effective = Callable[[TopicImage, MetadataImage], TopicConfig]
RoleCallback = Callable[[Partition], None]


class Replicas:
    """Partitions by topic and index, over all engines."""

    def __init__(
        self,
        broker: BrokerId,
        engines: Mapping[str, Engine],
        effective: Effective,
        tenure: Tenure,
        lag_rules: LagRules,
        delaying: Delaying = NO_DELAYS,
    ) -> None:
        self._broker = broker
        self._engines = engines
        self._effective = effective
        self._tenure = tenure
        self._lag_rules = lag_rules
        self._delaying = delaying
        self._on_role: list[RoleCallback] = []
        self._has_begun = False
        self._image: MetadataImage | None = None
        self._partitions: dict[str, dict[int, Partition]] = {}
        self._names_by_id: dict[bytes, str] = {}
        self._step: asyncio.Task[None] | None = None
        self._next: list[MetadataImage] = []

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._partitions.values():
            yield from partitions.values()

    @property
    def broker(self) -> BrokerId:
        return self._broker

    def on_role(self, callback: RoleCallback) -> None:
        """Call back after a partition has begun to lead or to follow, or has gone."""
        self._on_role.append(callback)

    def followed(self) -> dict[BrokerId, dict[TopicPartition, Partition]]:
        """The partitions that follow, by the broker that they follow."""
        found: dict[BrokerId, dict[TopicPartition, Partition]] = {}
        for partition in self:
            if partition.leadership is None and partition.leader >= 0:
                found.setdefault(partition.leader, {})[partition.topic_partition] = partition
        return found

    async def open(self, image: MetadataImage) -> None:
        """Brings back every log of this broker."""
        wanted: dict[str, dict[TopicPartition, tuple[TopicId, TopicConfig]]] = {name: {} for name in self._engines}
        for topic in image.topics.values():
            config = self._effective(topic, image)
            for partition in topic.partitions:
                if self._broker in partition.replicas:
                    at = TopicPartition(topic.name, partition.index)
                    wanted[config.storage][at] = (topic.id, config)
        for name, engine in self._engines.items():
            await engine.open(wanted[name])
        self._image = image
        for topic in image.topics.values():
            self._adopt(topic)

    async def begin(self) -> None:
        """This broker is a member of the cluster: from now on its partitions lead and follow.

        Not before: what the metadata said of a former self does not hold for this one.
        """
        await self.applied()
        self._has_begun = True
        assert self._image is not None
        for topic in self._image.topics.values():
            self._give_roles(topic, self._image.alive)

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
        """Takes a new image; what it asks for is done in the background, in order."""
        self._next.append(new)
        if self._step is None:
            self._step = asyncio.get_running_loop().create_task(self._catch_up(), name="apply metadata")

    async def applied(self) -> None:
        """Returns when every image so far has been applied."""
        while self._step is not None:
            await asyncio.shield(self._step)

    async def close(self) -> None:
        await self.applied()
        for partition in self:
            partition.go()
        self._partitions.clear()
        for engine in self._engines.values():
            await engine.close()

    async def _catch_up(self) -> None:
        try:
            while self._next:
                image = self._next.pop(0)
                await self._apply(image)
        finally:
            self._step = None

    async def _apply(self, image: MetadataImage) -> None:
        old = self._image
        assert old is not None
        self._image = image
        for name, topic in old.topics.items():
            current = image.topics.get(name)
            if current is None or current.id != topic.id:
                await self._remove(topic)
        defaults_changed = old.settings_of(self._broker) != image.settings_of(self._broker)
        alive_changed = old.alive != image.alive
        for name, topic in image.topics.items():
            if defaults_changed or old.topics.get(name) is not topic:
                await self._update(topic, image)
            elif alive_changed:
                self._give_roles(topic, image.alive)

    async def _update(self, topic: TopicImage, image: MetadataImage) -> None:
        config = self._effective(topic, image)
        held = self._partitions.get(topic.name, {})
        for index in [index for index in held if index >= len(topic.partitions)]:
            await self._let_go(held.pop(index))
        for partition in topic.partitions:
            at = TopicPartition(topic.name, partition.index)
            if self._broker not in partition.replicas:
                if partition.index in held:
                    await self._let_go(held.pop(partition.index))
                continue
            if partition.index in held:
                held[partition.index].log.configure(config)
                companion = held[partition.index].beside.companion
                if companion is not None:
                    companion.configure(companion_config(config))
                continue
            try:
                await self._engines[config.storage].create(at, topic.id, config)
            except (OSError, StorageError) as error:
                logger.critical("log is offline", extra=fields(log=str(at), reason=str(error)))
        self._adopt(topic)
        self._give_roles(topic, image.alive)

    async def _remove(self, topic: TopicImage) -> None:
        self._names_by_id.pop(topic.id.bytes, None)
        for partition in self._partitions.pop(topic.name, {}).values():
            await self._let_go(partition)

    async def _let_go(self, partition: Partition) -> None:
        partition.go()
        self._tell(partition)
        await self._delaying.gone(partition)
        for at in (partition.topic_partition, companion_of(partition.topic_partition)):
            for engine in self._engines.values():
                if at in engine.logs:
                    try:
                        await engine.delete(at)
                    except (OSError, StorageError) as error:
                        logger.error("log not removed", extra=fields(log=str(at), error=str(error)))

    def _give_roles(self, topic: TopicImage, alive: frozenset[BrokerId]) -> None:
        if not self._has_begun:
            return
        held = self._partitions.get(topic.name, {})
        for image in topic.partitions:
            partition = held.get(image.index)
            if partition is None:
                continue
            before = partition.leader_epoch
            if image.leader == self._broker:
                partition.lead(self._broker, image, alive, self._lag_rules)
            else:
                partition.follow(image.leader, image.leader_epoch)
            if partition.leader_epoch != before:
                self._tell(partition)

    def _tell(self, partition: Partition) -> None:
        for callback in self._on_role:
            callback(partition)

    def _adopt(self, topic: TopicImage) -> None:
        partitions = self._partitions.setdefault(topic.name, {})
        self._names_by_id[topic.id.bytes] = topic.name
        for image in topic.partitions:
            at = TopicPartition(topic.name, image.index)
            for engine in self._engines.values():
                log = engine.logs.get(at)
                if log is not None and image.index not in partitions:
                    partitions[image.index] = self._partition(log, engine, is_internal=topic.is_internal)

    def _partition(self, log: Log, engine: Engine, *, is_internal: bool) -> Partition:
        at = companion_of(log.topic_partition)

        async def make() -> Log:
            return await engine.create(at, log.topic_id, companion_config(log.config))

        delaying = NO_DELAYS if is_internal else self._delaying
        return Partition(log, self._tenure, Beside(log, engine.logs.get(at), make), delaying)

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
        if self._broker not in known.partitions[index].replicas or self._step is not None:
            # Or its log is being made: whoever asks again finds it.
            return ApiError(Code.NOT_LEADER_OR_FOLLOWER)
        return ApiError(Code.KAFKA_STORAGE_ERROR, f"{topic}-{index} is offline; the broker's log says why")
