"""Where replicas go: decisions about brokers, racks and balance.

Pure. Rules (`docs/cluster.md`): no two replicas of a partition on one broker; as many racks as there are; brokers with
fewer replicas first, and with fewer leaders first among them. What is asked for is always given if there are enough
brokers, however uneven the racks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from penstock.cluster.metadata import BrokerInfo, PartitionImage, TopicImage
from penstock.ids import BrokerId


class Loads:
    """How much each broker has."""

    def __init__(self, brokers: Iterable[BrokerInfo], topics: Iterable[TopicImage]) -> None:
        self._racks = {broker.id: broker.rack for broker in brokers}
        self._replicas: Counter[BrokerId] = Counter()
        self._leaders: Counter[BrokerId] = Counter()
        for topic in topics:
            for partition in topic.partitions:
                self.add(partition.replicas)

    def add(self, replicas: tuple[BrokerId, ...]) -> None:
        self._replicas.update(replicas)
        self._leaders[replicas[0]] += 1

    def remove(self, replicas: tuple[BrokerId, ...]) -> None:
        self._replicas.subtract(replicas)
        self._leaders[replicas[0]] -= 1

    def replicas_of(self, broker: BrokerId) -> int:
        return self._replicas[broker]

    def leader(self, among: Collection[BrokerId]) -> BrokerId:
        """Who should lead one more partition."""
        return min(among, key=lambda broker: (self._leaders[broker], self._replicas[broker], broker))

    def follower(self, among: Collection[BrokerId], beside: Collection[BrokerId]) -> BrokerId:
        """Who should hold one more replica of a partition that these hold."""
        taken = {rack for broker in beside if (rack := self._racks.get(broker)) is not None}

        def cost(broker: BrokerId) -> tuple[bool, int, int, BrokerId]:
            return self._racks.get(broker) in taken, self._replicas[broker], self._leaders[broker], broker

        return min((broker for broker in among if broker not in beside), key=cost)


def place(loads: Loads, brokers: Collection[BrokerId], count: int, factor: int) -> list[tuple[BrokerId, ...]]:
    """The replicas of new partitions, the preferred leader first; `factor` is at most the number of brokers."""
    placed = []
    for _ in range(count):
        replicas = [loads.leader(brokers)]
        while len(replicas) < factor:
            replicas.append(loads.follower(brokers, replicas))
        loads.add(tuple(replicas))
        placed.append(tuple(replicas))
    return placed


def without(
    partition: PartitionImage, gone: Collection[BrokerId], loads: Loads, brokers: Collection[BrokerId]
) -> tuple[BrokerId, ...] | None:
    """The replicas with others in the place of those that are gone; None if there are not enough brokers."""
    kept = [broker for broker in partition.replicas if broker not in gone]
    free = [broker for broker in brokers if broker not in partition.replicas and broker not in gone]
    if len(kept) + len(free) < len(partition.replicas):
        return None
    target = list(kept)
    while len(target) < len(partition.replicas):
        target.append(loads.follower(free, target))
    return tuple(target)


def next_move(
    topics: Mapping[str, TopicImage], loads: Loads, brokers: Collection[BrokerId]
) -> tuple[str, int, tuple[BrokerId, ...]] | None:
    """One step towards balance: topic, partition and its new replicas; None if no broker has two more than another."""
    if len(brokers) < 2:
        return None
    fullest = max(brokers, key=lambda broker: (loads.replicas_of(broker), broker))
    emptiest = min(brokers, key=lambda broker: (loads.replicas_of(broker), broker))
    if loads.replicas_of(fullest) - loads.replicas_of(emptiest) < 2:
        return None
    for topic in topics.values():
        for partition in topic.partitions:
            if fullest in partition.replicas and emptiest not in partition.replicas and not partition.is_moving:
                target = tuple(emptiest if broker == fullest else broker for broker in partition.replicas)
                return topic.name, partition.index, target
    return None
