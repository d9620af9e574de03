"""Placement of replicas: brokers, racks and balance.

Pure. Rules (`docs/cluster.md`): no two replicas of a partition on one broker; as many racks as possible; brokers with
fewer replicas first, and preferred leaders spread evenly. If there are enough brokers every request is met, however
uneven the racks are. A partition that moves counts as what it will be. Partitions in shared storage have no replicas to
place (`shared_storage.py`).

Balancing makes one move at a time, in the order of `STEPS`: racks, then replicas, then leaders. No step undoes what an
earlier one has done, so balancing ends.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.cluster.metadata import BrokerInfo, PartitionImage, TopicImage
from penstock.ids import BrokerId


class Move(NamedTuple):
    """One partition, and the replicas that it shall have."""

    topic: str
    partition: int
    target: tuple[BrokerId, ...]


class Loads:
    """How many replicas each broker stores, and where it stands. What is in shared storage does not count."""

    def __init__(self, brokers: Iterable[BrokerInfo], topics: Iterable[TopicImage]) -> None:
        self._racks = {broker.id: broker.rack for broker in brokers}
        self._replicas: Counter[BrokerId] = Counter()
        self._leaders: Counter[BrokerId] = Counter()
        for topic in topics:
            if topic.is_shared:
                continue
            for partition in topic.partitions:
                self.add(partition.target)

    def copy(self) -> Loads:
        copied = Loads((), ())
        copied._racks = self._racks
        copied._replicas, copied._leaders = self._replicas.copy(), self._leaders.copy()
        return copied

    def add(self, replicas: tuple[BrokerId, ...]) -> None:
        for broker in replicas:
            self._replicas[broker] += 1
        self._leaders[replicas[0]] += 1

    def remove(self, replicas: tuple[BrokerId, ...]) -> None:
        for broker in replicas:
            self._replicas[broker] -= 1
        self._leaders[replicas[0]] -= 1

    def replicas_of(self, broker: BrokerId) -> int:
        return self._replicas[broker]

    def leaders_of(self, broker: BrokerId) -> int:
        """How many partitions would rather be led by this broker than by another."""
        return self._leaders[broker]

    def racks_of(self, brokers: Iterable[BrokerId]) -> int:
        """In how many racks these brokers stand; one without a rack stands alone."""
        return len({self._racks.get(broker) or broker for broker in brokers})

    def next_to(self, beside: Collection[BrokerId], among: Collection[BrokerId]) -> BrokerId:
        """The broker that should hold one more replica of a partition that these others hold."""
        taken = {rack for broker in beside if (rack := self._racks.get(broker)) is not None}
        placed = self._replicas.total()

        def cost(broker: BrokerId) -> tuple[bool, int, int]:
            # Of equals any: if always the same were together, one would take over all that another had.
            luck = zlib.crc32(f"{placed} {broker}".encode())
            return self._racks.get(broker) in taken, self._replicas[broker], luck

        return min((broker for broker in among if broker not in beside), key=cost)

    def led(self, replicas: Collection[BrokerId]) -> tuple[BrokerId, ...]:
        """These, beginning with the one that should lead."""
        first = min(replicas, key=lambda broker: self._leaders[broker])
        return (first, *(broker for broker in replicas if broker != first))


def place(loads: Loads, brokers: Collection[BrokerId], count: int, factor: int) -> list[tuple[BrokerId, ...]]:
    """The replicas of new partitions, the preferred leader first; `factor` is at most the number of brokers."""
    if len(brokers) == 1 and factor == 1:
        return [tuple(brokers)] * count
    placed = []
    loads = loads.copy()
    for _ in range(count):
        replicas: list[BrokerId] = []
        while len(replicas) < factor:
            replicas.append(loads.next_to(replicas, brokers))
        placed.append(loads.led(replicas))
        loads.add(placed[-1])
    return placed


def without(
    partition: PartitionImage, gone: Collection[BrokerId], loads: Loads, brokers: Collection[BrokerId]
) -> tuple[BrokerId, ...] | None:
    """The replicas with others in the place of those that are gone, as far as there are others; None for no change."""
    target = list(partition.target)
    for position, broker in enumerate(target):
        free = [other for other in brokers if other not in target and other not in gone]
        if broker in gone and free:
            kept = [other for other in target if other not in gone]
            target[position] = loads.next_to(kept, free)
    return None if tuple(target) == partition.target else tuple(target)


def _spread_racks(topics: Mapping[str, TopicImage], loads: Loads, brokers: Collection[BrokerId]) -> Move | None:
    """A replica that shares its rack goes to a rack that has none: they had to share it once, and need not any more."""
    racks = loads.racks_of(brokers)
    if racks == len(brokers):
        return None
    for topic, partition in _settled(topics):
        replicas = partition.replicas
        spread = loads.racks_of(replicas)
        if spread >= min(racks, len(replicas)):
            continue
        for position in reversed(range(len(replicas))):
            kept = (*replicas[:position], *replicas[position + 1 :])
            free = [broker for broker in brokers if broker not in replicas]
            if not free or loads.racks_of(kept) < spread:
                continue
            target = (*replicas[:position], loads.next_to(kept, free), *replicas[position + 1 :])
            if loads.racks_of(target) > spread:
                return Move(topic, partition.index, target)
    return None


def _even_replicas(topics: Mapping[str, TopicImage], loads: Loads, brokers: Collection[BrokerId]) -> Move | None:
    """From a broker that has at least two replicas more than another one to that one."""
    for full, empty in _uneven(brokers, loads.replicas_of):
        has_more_leaders = loads.leaders_of(full) > loads.leaders_of(empty)
        possible = None
        for topic, partition in _settled(topics):
            replicas = partition.replicas
            if full not in replicas or empty in replicas:
                continue
            target = tuple(empty if broker == full else broker for broker in replicas)
            if loads.racks_of(target) < loads.racks_of(replicas):
                continue
            possible = Move(topic, partition.index, target)
            if (replicas[0] == full) == has_more_leaders:
                break
        if possible is not None:
            return possible
    return None


def _even_leaders(topics: Mapping[str, TopicImage], loads: Loads, brokers: Collection[BrokerId]) -> Move | None:
    """Of two that hold a partition the one is preferred that is by fewer; nothing has to be copied for it."""
    for full, empty in _uneven(brokers, loads.leaders_of):
        for topic, partition in _settled(topics):
            replicas = partition.replicas
            if replicas[0] == full and empty in replicas:
                others = tuple(broker for broker in replicas if broker != empty)
                return Move(topic, partition.index, (empty, *others))
    return None


Step = Callable[[Mapping[str, TopicImage], Loads, Collection[BrokerId]], Move | None]

STEPS: tuple[Step, ...] = (_spread_racks, _even_replicas, _even_leaders)
"""Each gives its next move; None if nothing is left for it to do."""


def _uneven(brokers: Collection[BrokerId], load_of: Callable[[BrokerId], int]) -> list[tuple[BrokerId, BrokerId]]:
    """Pairs of brokers of which the first could give something to the second, the most uneven pair first."""
    pairs = [
        (load_of(empty) - load_of(full), full, empty)
        for full in brokers
        for empty in brokers
        if load_of(full) - load_of(empty) >= 2
    ]
    return [(full, empty) for _, full, empty in sorted(pairs)]


def _settled(topics: Mapping[str, TopicImage]) -> Iterator[tuple[str, PartitionImage]]:
    """The partitions that could be moved."""
    for topic in topics.values():
        if topic.is_shared:
            continue
        for partition in topic.partitions:
            if not partition.is_moving:
                yield topic.name, partition
