"""Three brokers that are one, as a target: addressed together, counted together, and hurt one by one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Protocol, runtime_checkable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from bench.clusters.node import Node
from bench.servers.process import Server, ServerError
from bench.target import Target

SIZE = 3
WHOLE_LIMIT_S = 90.0
_LOOK_S = 0.05
_ANSWER_S = 5.0


@runtime_checkable
class ClusterServer(Server, Protocol):
    """A kind of broker of which several can be one."""

    def prepare_cluster(self, folder: Path) -> Nodes:
        """Make fresh storage and settings for all nodes in a folder that does not exist yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The brokers of a cluster by their ids, from 1, and what they need besides, which is started first."""

    brokers: tuple[Node, ...]
    others: tuple[Node, ...] = ()

    @property
    def address(self) -> str:
        return ",".join(node.address for node in self.brokers)

    def start(self) -> None:
        for group in (self.others, self.brokers):
            for node in group:
                node.start()
            for node in group:
                node.wait_until_listening()

    def end(self) -> None:
        """All at once: the last of them would wait in vain for somebody to hand over to."""
        for node in (*self.brokers, *self.others):
            node.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTarget(Target):
    """A running cluster; one column of the report."""

    nodes: Nodes
    turns: Iterator[int] = field(default_factory=count)
    """Who is hurt next: each in turn, so that one of them is the controller."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Brokers, and what they need besides: where that is inside the brokers it is counted too."""
        return tuple(pid for node in (*self.nodes.brokers, *self.nodes.others) for pid in node.pids)

    @property
    def broker_pids(self) -> tuple[int, ...]:
        return tuple(pid for node in self.nodes.brokers for pid in node.pids)

    def stop(self) -> None:
        self.nodes.end()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def next_leader(self, topic: str) -> Node:
        """The brokers in turn, as far as they lead a partition of the topic."""
        seen: ClusterMetadata = _admin(self.address).list_topics(topic, timeout=_ANSWER_S)
        leaders = {found.leader for found in seen.topics[topic].partitions.values()}
        brokers = self.nodes.brokers
        for turn in islice(self.turns, len(brokers)):
            index = turn % len(brokers)
            if index + 1 in leaders:
                return brokers[index]
        raise ServerError(f"nobody leads a partition of {topic}")

    def wait_until_whole(self) -> None:
        """Every broker is there, and every replica of every partition is in sync."""

        def is_whole(seen: ClusterMetadata) -> bool:
            partitions = [found for topic in seen.topics.values() for found in topic.partitions.values()]
            return len(seen.brokers) == len(self.nodes.brokers) and all(
                set(found.isrs) == set(found.replicas) for found in partitions
            )

        self._wait_until(is_whole, [node.address for node in self.nodes.brokers], "the cluster is not whole again")

    def wait_until_without(self, lost: Node, topic: str) -> None:
        """No partition of the topic counts on `lost` any more."""
        number = self.nodes.brokers.index(lost) + 1
        others = ",".join(node.address for node in self.nodes.brokers if node is not lost)

        def is_without(seen: ClusterMetadata) -> bool:
            partitions = seen.topics[topic].partitions.values()
            return all(found.leader not in (-1, number) and number not in found.isrs for found in partitions)

        self._wait_until(is_without, [others], f"{topic} still counts on a broker that is gone")

    def _wait_until(self, look: Callable[[ClusterMetadata], bool], addresses: Sequence[str], complaint: str) -> None:
        """Until it is so in the eyes of each of these."""
        deadline = time.monotonic() + WHOLE_LIMIT_S
        for address in addresses:
            admin = _admin(address)
            while True:
                try:
                    if look(admin.list_topics(timeout=_ANSWER_S)):
                        break
                except (KafkaException, KeyError):
                    pass
                if time.monotonic() > deadline:
                    raise ServerError(f"{complaint} after {WHOLE_LIMIT_S:.0f} s")
                time.sleep(_LOOK_S)


def start_cluster(server: ClusterServer, folder: Path) -> ClusterTarget:
    """Start a cluster on fresh storage; if one node does not come up, none is left running."""
    nodes = server.prepare_cluster(folder)
    target = ClusterTarget(
        name=server.name,
        protocol=server.protocol,
        address=nodes.address,
        version=server.version,
        server=server,
        folder=folder,
        nodes=nodes,
        replicas=len(nodes.brokers),
    )
    try:
        nodes.start()
        target.wait_until_whole()
    except BaseException:
        target.stop()
        raise
    return target


def _admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.max.ms": 200})
