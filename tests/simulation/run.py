"""One run: a cluster drawn from a seed, faults for a while, then peace until everything is whole again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from penstock.cluster.metadata import NO_LEADER, BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.ids import BrokerId
from penstock.replication.leadership import LagRules

from .broker import Broker, Surroundings
from .clients import Consumer, EndAsker, Producer
from .faults import Faults
from .judge import Judge, Violation
from .leading import Leading
from .machines import Machines, Timing
from .network import Network
from .tree import TOPIC, Tree
from .world import Node, World

_LOOK_EVERY_MS = 100.0

_BUSY_MS = 2.0
"""Between two records of a producer, where many of them send faster than a follower can ask."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed."""

    seed: int
    counts: Counter[str]
    violation: Violation | None
    trace: list[str] = field(default_factory=list)
    whole_after_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Plant:
    """What a run is made with; in a test of the simulation one of them has a planted bug."""

    machines: Machines = field(default_factory=Machines)
    broker: type[Broker] = Broker


class Run:
    """A cluster and its clients."""

    def __init__(self, seed: int, plant: Plant, timing: Timing, *, is_traced: bool) -> None:
        self.world = World(seed, is_traced=is_traced)
        random = self.world.random
        ids = [BrokerId(number) for number in range(1, random.choice((3, 3, 3, 4, 5)) + 1)]
        partitions = random.choice((1, 1, 2, 3))
        image = _first_image(ids, [random.sample(ids, random.choice((2, 3, 3))) for _ in range(partitions)])
        self._timing = timing
        self._network = Network(self.world)
        self.judge = Judge(self.world, partitions, timing.followed_within)
        self._tree = Tree(self.world, self._network, self.judge, timing, image)
        self.brokers: dict[BrokerId, Broker] = {}
        is_busy = partitions == 1 and random.random() < 0.06
        around = Surroundings(
            world=self.world,
            network=self._network,
            tree=self._tree,
            judge=self.judge,
            machines=plant.machines,
            timing=timing,
            lag=LagRules(
                max_ms=random.choice((300, 600, 1500)),
                max_messages=random.choice((0, 0, 0 if is_busy else 4)),
                lease_ms=int(timing.lease),
            ),
            min_in_sync=random.choice((1, 1, 2)),
            brokers=self.brokers,
        )
        for broker in ids:
            self.brokers[broker] = plant.broker(broker, partitions, around)
        self._faults_for_ms = random.uniform(3000.0, 4000.0 if is_busy else 20_000.0)
        clients = Node("clients")
        parts = (clients, self.world, self._network, self.brokers)
        self._producers = [
            Producer(*parts, index, self.judge, _BUSY_MS if is_busy else random.choice((60.0, 150.0, 400.0)))
            for index in range(partitions)
            for _ in range(8 if is_busy else random.choice((1, 2)))
        ]
        for index in range(partitions):
            Consumer(*parts, index, self.judge)
            EndAsker(*parts, index, self.judge)
        self._faults = Faults(self.world, self._network, self._tree, list(self.brokers.values()), clients)
        self.world.tell(f"faults: {', '.join(self._faults.names)}; {around.lag}, min in sync {around.min_in_sync}")
        self.world.tell(f"replicas: {[list(part.replicas) for part in image.topics[TOPIC].partitions]}")

    def go(self) -> float:
        """Gives how long it took to become whole; raises a `Violation`."""
        world = self.world
        for broker in self.brokers.values():
            broker.start()
        world.run(1000.0)
        self._faults.begin()
        world.run(1000.0 + self._faults_for_ms)
        self._faults.stop()
        world.tell("the faults are over")
        begun_ms = world.now_ms
        while (missing := self._missing(begun_ms)) is not None:
            if world.now_ms - begun_ms > self._timing.whole_within:
                raise Violation(None, f"not whole again: {missing}")
            world.run(world.now_ms + _LOOK_EVERY_MS)
        took_ms = world.now_ms - begun_ms
        for partition in self._tree.view.image.topics[TOPIC].partitions:
            logs = [self.brokers[replica].logs[partition.index] for replica in partition.replicas]
            self.judge.finish(partition.index, logs, self.brokers[partition.leader].logs[partition.index])
        return took_ms

    def _missing(self, begun_ms: float) -> str | None:
        """What is not yet as it should be."""
        for partition in self._tree.view.image.topics[TOPIC].partitions:
            if partition.leader == NO_LEADER:
                return f"partition {partition.index} has no leader"
            role = self.brokers[partition.leader].roles.get(partition.index)
            if not isinstance(role, Leading) or role.epoch != partition.leader_epoch:
                return f"the leader of partition {partition.index} does not lead"
            if len(partition.in_sync) != len(partition.replicas):
                return f"of partition {partition.index} only {partition.in_sync} are in sync"
        for number, producer in enumerate(self._producers):
            if producer.acknowledged_since_ms < begun_ms:
                return f"nothing new of producer {number} is acknowledged"
        return None


def simulate(
    seed: int, plant: Plant | None = None, timing: Timing | None = None, *, is_traced: bool = False
) -> Outcome:
    run = Run(seed, plant or Plant(), timing or Timing(), is_traced=is_traced)
    violation, took_ms = None, 0.0
    try:
        took_ms = run.go()
    except Violation as found:
        violation = found
        run.world.tell(f"VIOLATION {found}")
    counts = run.world.counts
    counts["events"] = run.world.events
    counts["simulated ms"] = int(run.world.now_ms)
    return Outcome(seed, counts, violation, run.world.trace or [], took_ms)


def _first_image(brokers: list[BrokerId], replicas: list[list[BrokerId]]) -> MetadataImage:
    """Everybody is known and nobody is alive; the first replica was the last leader of each partition."""
    partitions = tuple(
        PartitionImage(index, NO_LEADER, 0, tuple(ids), tuple(ids)) for index, ids in enumerate(replicas)
    )
    topic = TopicImage(TOPIC, UUID(int=7), partitions)
    return MetadataImage(
        version=0,
        cluster_id="simulated",
        brokers=MappingProxyType(
            {broker: BrokerInfo(broker, "127.0.0.1", 9000 + broker, is_alive=False) for broker in brokers}
        ),
        controller=BrokerId(-1),
        topics=MappingProxyType({TOPIC: topic}),
        topic_names_by_id=MappingProxyType({topic.id: TOPIC}),
    )
