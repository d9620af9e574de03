"""The partitions in shared storage that this broker leads.

A log is taken over in the leader epoch that the image says, and only then there is a partition. A topic of which a
partition could not be taken over is brought to its latest image again, after a while.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping

from penstock.cluster.metadata import MetadataImage, PartitionImage, TopicImage
from penstock.config.topic import TopicConfig
from penstock.errors import PenstockError
from penstock.ids import BrokerId, TopicPartition
from penstock.logs import fields
from penstock.replication.leadership import LagRules
from penstock.replication.partition import Partition
from penstock.replication.take_overs import TakeOvers, release
from penstock.storage.contract import Engine, Log

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0
"""How long to wait before the next attempt to reach shared storage: twice as long each time."""

NewPartition = Callable[[Log, Engine, TopicImage], Partition]


class SharedPartitions:
    """Takes partitions over for one broker, and decides when to try again."""

    def __init__(
        self,
        broker: BrokerId,
        lag_rules: LagRules,
        new_partition: NewPartition,
        on_role: Callable[[Partition], None],
        bring_again: Callable[[str], bool],
    ) -> None:
        """`bring_again` brings a topic to the latest image; False if there is no such topic any more."""
        self._broker = broker
        self._lag_rules = lag_rules
        self._new_partition = new_partition
        self._on_role = on_role
        self._bring_again = bring_again
        self._take_overs = TakeOvers()
        self._newest: MetadataImage | None = None
        self._tries: dict[str, int] = {}
        """Topics of which a partition could not be taken over, and how often that was tried."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_closing = False

    def close(self) -> None:
        """Nothing is tried again from now on."""
        self._is_closing = True
        for timer in self._timers.values():
            timer.cancel()

    def image_changed(self, newest: MetadataImage) -> None:
        """There is a newer image; it may not be applied yet."""
        self._newest = newest

    def led_epochs(self, topic: TopicImage) -> dict[int, int]:
        """The partitions that this broker leads, and in which epoch."""
        return {each.index: each.leader_epoch for each in topic.partitions if each.leader == self._broker}

    async def take_over(
        self,
        topic: TopicImage,
        wanted: Iterable[int],
        held: dict[int, Partition],
        image: MetadataImage,
        engine: Engine,
        config: TopicConfig,
    ) -> None:
        """Adds to `held` those of the wanted partitions that could be taken over; logs why others could not."""
        missing = [topic.partitions[index] for index in wanted]
        random.shuffle(missing)  # or a few that always fail could keep the others from their turn
        failed: list[tuple[PartitionImage, Exception]] = []

        async def take(partition: PartitionImage) -> None:
            log, error = await self._take_overs.take_over(engine, topic, partition, config)
            if error is not None:
                failed.append((partition, error))
            if log is None:
                return
            if not self._still_leads(topic, partition):
                await release(engine, TopicPartition(topic.name, partition.index))
                return
            taken = self._new_partition(log, engine, topic)
            taken.lead(self._broker, partition, image.alive, self._lag_rules)
            held[partition.index] = taken
            self._on_role(taken)

        await asyncio.gather(*map(take, missing))
        if failed:
            partition, error = failed[0]
            logger.warning(
                "cannot take over partitions in shared storage, retrying",
                extra=fields(
                    log=f"{topic.name}-{partition.index}",
                    epoch=partition.leader_epoch,
                    reason=str(error),
                    partitions=len(failed),
                ),
                exc_info=None if isinstance(error, PenstockError | OSError) else error,
            )

    def done(self, name: str, held: Mapping[int, Partition], led: Mapping[int, int]) -> None:
        """A topic was brought to an image: it is tried again unless all that this broker leads can be written to."""
        if held.keys() == led.keys() and not any(partition.log.is_read_only for partition in held.values()):
            self._tries.pop(name, None)
        elif name not in self._timers and not self._is_closing:
            tries = self._tries[name] = self._tries.get(name, 0) + 1
            pause_s = min(_FIRST_PAUSE_S * 2 ** min(tries - 1, 10), _LAST_PAUSE_S)
            self._timers[name] = asyncio.get_running_loop().call_later(pause_s, self._try_again, name)

    def _try_again(self, name: str) -> None:
        del self._timers[name]
        if not self._bring_again(name):
            self._tries.pop(name, None)

    def _still_leads(self, topic: TopicImage, partition: PartitionImage) -> bool:
        """Whether this broker leads a partition in an epoch, by the newest image."""
        assert self._newest is not None
        newest = self._newest.topics.get(topic.name)
        if newest is None or newest.id != topic.id or partition.index >= len(newest.partitions):
            return False
        found = newest.partitions[partition.index]
        return (found.leader, found.leader_epoch) == (self._broker, partition.leader_epoch)


def not_led(
    held: Mapping[int, Partition], led: Mapping[int, int], topic: TopicImage, engine: Engine | None
) -> list[int]:
    """The partitions that have to be closed, to be taken over again or not: in another epoch than this broker leads
    in, or open to be read only while their database takes writes.
    """
    return [
        index
        for index, partition in held.items()
        if partition.leader_epoch != led.get(index)
        or (partition.log.is_read_only and engine is not None and engine.takes_writes(topic.partitions[index].database))
    ]
