"""Penstock brokers that have one database and nothing else: no ZooKeeper, no disks of their own that matter."""

from __future__ import annotations

from pathlib import Path

from bench.clusters.cluster import Nodes
from bench.clusters.node import Node
from bench.clusters.penstock import penstock_broker
from bench.servers.databases import databases, prepared
from bench.servers.penstock import PenstockServer
from bench.servers.process import ServerError, free_ports


class DatabaseCluster(PenstockServer):
    """Brokers 1 to `size` with default settings."""

    def __init__(self, kind: str, size: int) -> None:
        super().__init__(group_delays=True)
        self.name = f"{size} brokers"
        self._kind = kind
        self._size = size
        self.version += f", one {kind}"

    def obtain(self) -> None:
        super().obtain()
        if self._kind not in databases():
            raise ServerError(f"{self._kind} is not installed")

    def prepare_cluster(self, folder: Path) -> Nodes:
        (folder / self._kind).mkdir(parents=True)
        launch, url = prepared(self._kind, folder / self._kind)
        ports = free_ports(2 * self._size)
        brokers = tuple(
            penstock_broker(
                self.executable,
                folder / f"broker-{number}",
                number,
                port,
                http,
                env={"PENSTOCK_SQL_URL": url},
            )
            for number, (port, http) in enumerate(zip(ports[::2], ports[1::2], strict=True), start=1)
        )
        return Nodes(brokers=brokers, others=(Node(self._kind, launch),))
