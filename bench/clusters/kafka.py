"""Three Kafka nodes, each broker and controller (KRaft), with the settings that Kafka ships and a smaller heap.

A heap of 1 GB each, as the start script asks for, would take the page cache of a small machine; the load needs a
fraction of it.
"""

from __future__ import annotations

from pathlib import Path

from bench.clusters.cluster import SIZE, Nodes
from bench.clusters.node import Node
from bench.servers.kafka import DEFAULT_VERSION, KafkaServer, new_id, properties
from bench.servers.process import Launch, free_ports

HEAP = ("-Xmx384m", "-Xms384m")


class KafkaCluster(KafkaServer):
    """Nodes 1 to 3, whose controllers are a quorum."""

    def __init__(self, cache: Path, version: str = DEFAULT_VERSION) -> None:
        super().__init__(cache, version, group_delays=True)
        self.version = f"{version}, three KRaft nodes ({HEAP[0]} each)"

    def prepare_cluster(self, folder: Path) -> Nodes:
        folder.mkdir(parents=True)
        ports = free_ports(2 * SIZE)
        brokers, controllers = ports[:SIZE], ports[SIZE:]
        quorum = ",".join(f"127.0.0.1:{port}" for port in controllers)
        cluster_id = new_id()
        voters = ",".join(f"{number}@127.0.0.1:{port}:{new_id()}" for number, port in enumerate(controllers, start=1))
        nodes = []
        for number, (broker, controller) in enumerate(zip(brokers, controllers, strict=True), start=1):
            home = folder / f"node-{number}"
            home.mkdir()
            file = home / "server.properties"
            settings = properties(
                node=number, broker=broker, controller=controller, quorum=quorum, data=home / "data", replicas=SIZE
            )
            file.write_text(settings)
            self.format(file, cluster_id, f"--initial-controllers={voters}")
            launch = Launch(address=f"127.0.0.1:{broker}", command=self.command(file, HEAP), folder=home)
            nodes.append(Node(f"Kafka node {number}", launch))
        return Nodes(brokers=tuple(nodes))
