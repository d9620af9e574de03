"""Metadata of a large cluster in one process: what its controller, and each of its brokers, would have to do.

    python -m bench.scale [--brokers 1000] [--partitions 1000000] [--topic-partitions 100] [--factor 3]

Broker 1 is real as far as metadata goes: coordination tree (a SQLite file), membership, image, controller. The others
are their registrations and leases, and the topics are generated, spread evenly. Then one broker's lease is deleted, as
the end of its session does it. A second reader of the tree stands for every other broker.

CPU is that of the whole process, in which only what the row names is going on. A stall is the longest time for which
the event loop did nothing else: longer than a third of the lease, and a real broker would not renew it in time.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from penstock.clock import SystemClock
from penstock.cluster import nodes
from penstock.cluster.controller import maintenance
from penstock.cluster.controller.controller import Controller
from penstock.cluster.coordination.contract import Change, Create, Delete, commit_bytes
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.decisions.topics import TopicCreation, TopicRules
from penstock.cluster.folder import DataFolder, FolderIdentity
from penstock.cluster.membership import Membership
from penstock.cluster.metadata import BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.cluster import ClusterSettings
from penstock.ids import BrokerId, TopicPartition, new_topic_id

T = TypeVar("T")

TOPICS_A_CHANGE = 500
LIMIT_S = 900.0
TICK_S = 0.01
RACKS = 3
CHANGES = 5
LEASE_MS = 6_000


class MeteredTree(EmbeddedCoordination):
    """Counts what is committed."""

    commits = 0
    bytes = 0

    async def commit(self, *changes: Change, seen: int | None = None) -> int:
        self.commits += 1
        self.bytes += commit_bytes(changes)
        return await super().commit(*changes, seen=seen)


@dataclass
class Stall:
    """The longest time between two turns of the event loop."""

    longest_s: float = 0.0
    _task: asyncio.Task[None] | None = field(default=None, repr=False)

    async def __aenter__(self) -> Stall:
        self._task = asyncio.create_task(self._watch(), name="stall")
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(2 * TICK_S)
        assert self._task is not None
        self._task.cancel()

    async def _watch(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            self.longest_s, before = max(self.longest_s, now - before - TICK_S), now


@dataclass(frozen=True)
class Cost:
    """What one thing took."""

    took_s: float
    cpu_s: float
    stall_s: float


async def cost_of(work: Callable[[], Awaitable[T]]) -> tuple[T, Cost]:
    async with Stall() as stall:
        began, cpu = time.perf_counter(), time.process_time()
        result = await work()
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return result, Cost(took_s, cpu_s, stall.longest_s)


def rss_mb() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def generated(topics: int, partitions: int, brokers: int, factor: int) -> Iterator[TopicImage]:
    """Topics whose replicas are spread evenly over all brokers, each with another set of neighbours."""
    number = 0
    for topic in range(topics):
        images = []
        for index in range(partitions):
            step = 1 + number // brokers % max(1, brokers // factor - 1)
            replicas = tuple(BrokerId(1 + (number + place * step) % brokers) for place in range(factor))
            images.append(PartitionImage(index, replicas[0], 1, replicas, replicas))
            number += 1
        yield TopicImage(f"topic-{topic:06d}", new_topic_id(), tuple(images))


async def until(is_done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_done():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {LIMIT_S:g} s")
        await asyncio.sleep(TICK_S)


class SimulatedCluster:
    """Broker 1 and its controller, and what the tree says of the others."""

    def __init__(self, tree: MeteredTree, folder: Path, brokers: int, factor: int) -> None:
        self.tree = tree
        self.brokers = brokers
        self.factor = factor
        rules = TopicRules(default_partitions=1, default_replication_factor=factor, partitions=sys.maxsize)
        self._settings = MetadataSettings(None, BrokerId(1), rules)
        self.metadata = MetadataChanges(tree, self._settings)
        self._folder = DataFolder(folder)
        self._membership = Membership(tree, self.metadata, self._folder, LEASE_MS)
        self._controller = Controller(
            BrokerId(1), tree, self.metadata, self._membership, self._folder, ClusterSettings(), SystemClock()
        )

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    async def start(self) -> None:
        image = await self.metadata.start()
        self._folder.belong_to(FolderIdentity(image.cluster_id, BrokerId(1)))
        await self._membership.join(self._info(1))
        await self.metadata.change(self._register_others)

    def _info(self, number: int) -> BrokerInfo:
        return BrokerInfo(BrokerId(number), f"broker-{number}.example.org", 9092, f"rack-{number % RACKS}")

    def _register_others(self, draft: MetadataDraft) -> None:
        for number in range(2, self.brokers + 1):
            draft.put_broker(self._info(number))
            draft.beside.append(Create(nodes.lease_path(BrokerId(number)), nodes.encode_lease("-", "-")))

    async def write(self, topics: Iterator[TopicImage]) -> None:
        while some := list(islice(topics, TOPICS_A_CHANGE)):
            partitions = sum(len(topic.partitions) for topic in some)
            await self.metadata.change(partial(_put, some), partitions=partitions)

    async def elect_controller(self) -> None:
        await self._controller.start()
        assert self._controller.epoch is not None

    async def reader(self) -> MetadataChanges:
        """What every other broker has."""
        other = MetadataChanges(self.tree, self._settings)
        await other.start()
        return other

    async def lose(self, broker: BrokerId) -> None:
        """Its session ends; until others lead what it led."""
        await self.tree.commit(Delete(nodes.lease_path(broker), 0))
        await until(lambda: not self.image.brokers[broker].is_alive, "the controller elects other leaders")

    def led_by(self, broker: BrokerId) -> int:
        return sum(partition.leader == broker for topic in self.image.topics.values() for partition in topic.partitions)

    async def shrink_an_in_sync_set(self) -> None:
        """As a leader does whose follower lags."""
        topic, partition = next(
            (topic, partition)
            for topic in self.image.topics.values()
            for partition in topic.partitions
            if partition.leader == 1 and len(partition.in_sync) == self.factor
        )
        at = TopicPartition(topic.name, partition.index)
        await self.metadata.put_in_sync({at: (partition.leader_epoch, partition.in_sync[:-1])})

    async def create_topic(self, number: int) -> None:
        name = f"new-{number}"
        result = (await self.metadata.create_topics([TopicCreation(name, 10, self.factor)]))[name]
        if isinstance(result, Exception):
            raise result

    async def close(self) -> None:
        await self._controller.close()
        await self._membership.close()
        await self.metadata.close()
        await self.tree.close()
        self._folder.close()


def _put(topics: Sequence[TopicImage], draft: MetadataDraft) -> None:
    for topic in topics:
        draft.put_topic(topic)


def maintenance_step(image: MetadataImage, gone: Sequence[BrokerId] = ()) -> None:
    """What the controller decides once a second while something is being waited for; at the end of a broker's grace
    time its replicas begin to move elsewhere.
    """
    draft = MetadataDraft(image)
    maintenance.even_out(MetadataDraft(image), 1)
    maintenance.tidy(draft, gone, maintenance.MaintenanceLimits(10, 100), lambda topic: False, may_even=False)


def tell(what: str, cost: Cost, more: str = "") -> None:
    print(f"| {what} | {cost.took_s:.2f} | {cost.cpu_s:.2f} | {cost.stall_s:.2f} | {more} |", flush=True)


async def measure(folder: Path, brokers: int, partitions: int, topic_partitions: int, factor: int) -> None:
    folder.joinpath("broker").mkdir()
    tree = await MeteredTree.open(folder / "tree.db")
    cluster = SimulatedCluster(tree, folder / "broker", brokers, factor)
    try:
        await cluster.start()
        topics = max(1, partitions // topic_partitions)
        print("| what | s | CPU-s | longest stall, s | |\n|---|---:|---:|---:|---|")
        before_bytes = tree.bytes
        _, cost = await cost_of(lambda: cluster.write(generated(topics, topic_partitions, brokers, factor)))
        size_mb = (tree.bytes - before_bytes) / 1e6
        tell(f"write {cluster.image.partition_count:,} partitions of {topics:,} topics", cost, f"{size_mb:.1f} MB")

        before_mb = rss_mb()
        other, cost = await cost_of(cluster.reader)
        tell("a broker that starts reads all of it", cost, f"{rss_mb() - before_mb:.0f} MB of memory")

        async def look(gone: Sequence[BrokerId] = ()) -> None:
            maintenance_step(cluster.image, gone)

        _, cost = await cost_of(look)
        tell("one look of the controller, nothing to do", cost)

        for number in range(CHANGES):
            _, cost = await cost_of(partial(cluster.create_topic, number))
        tell("create a topic of 10 partitions", cost)
        for _ in range(CHANGES):
            _, cost = await cost_of(cluster.shrink_an_in_sync_set)
        tell("change an in-sync set", cost, f"{1 / cost.took_s:.0f} a second")

        await cluster.elect_controller()
        lost = BrokerId(brokers // 2)
        led, commits, before_bytes = cluster.led_by(lost), tree.commits, tree.bytes
        _, cost = await cost_of(lambda: cluster.lose(lost))
        if cluster.led_by(lost):
            raise SystemExit(f"broker {lost} still leads {cluster.led_by(lost)} partitions")
        tell(
            f"broker {lost} is lost: other leaders for {led:,} partitions",
            cost,
            f"{tree.commits - commits} commits, {(tree.bytes - before_bytes) / 1e6:.1f} MB",
        )
        _, cost = await cost_of(lambda: until(lambda: not other.image.brokers[lost].is_alive, "the others know"))
        tell("until the others know, after that", cost)
        _, cost = await cost_of(partial(look, [lost]))
        tell("one look of the controller when the broker stays away", cost)
        await other.close()
    finally:
        await cluster.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--brokers", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--topic-partitions", type=int, default=100)
    parser.add_argument("--factor", type=int, default=3)
    given = parser.parse_args(arguments)
    if given.brokers < max(3, given.factor):
        parser.error("at least three brokers, and one for each replica")
    folder = Path(tempfile.mkdtemp(prefix="penstock-scale-"))
    try:
        asyncio.run(measure(folder, given.brokers, given.partitions, given.topic_partitions, given.factor))
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
