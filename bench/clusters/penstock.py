"""Three Penstock brokers with default settings, and the ZooKeeper that they meet at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from bench.clusters.cluster import SIZE, Nodes
from bench.clusters.node import Node
from bench.servers.packages import ensure_command
from bench.servers.penstock import PenstockServer
from bench.servers.process import Launch, ServerError, free_ports

HEAP = "-Xmx256m"
_JARS = tuple(Path("/usr/share/java") / name for name in ("zookeeper.jar", "slf4j-simple.jar"))
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class PenstockCluster(PenstockServer):
    """One ZooKeeper server, brokers 1 to 3."""

    def __init__(self) -> None:
        super().__init__(group_delays=True)
        self.version += f", one ZooKeeper ({HEAP})"

    def obtain(self) -> None:
        super().obtain()
        ensure_command("java", "default-jre-headless")
        if find_spec("kazoo") is None:
            raise ServerError("kazoo, the client of ZooKeeper, is not installed")
        missing = [jar.name for jar in _JARS if not jar.exists()]
        if missing:
            raise ServerError(f"ZooKeeper is not installed ({', '.join(missing)}): apt-get install zookeeper")

    def prepare_cluster(self, folder: Path) -> Nodes:
        folder.mkdir(parents=True)
        tree, *ports = free_ports(1 + 2 * SIZE)
        coordinator = f"zk://127.0.0.1:{tree}/bench"
        brokers = tuple(
            self._broker(folder / f"broker-{number}", number, ports[number - 1], ports[SIZE + number - 1], coordinator)
            for number in range(1, SIZE + 1)
        )
        return Nodes(brokers=brokers, others=(_zookeeper(folder / "zookeeper", tree),))

    def _broker(self, folder: Path, number: int, port: int, http: int, coordinator: str) -> Node:
        options = ("--coordinator", coordinator, "--set", f"broker.default_replication_factor={SIZE}")
        return penstock_broker(self.executable, folder, number, port, http, options)


def penstock_broker(
    executable: Path,
    folder: Path,
    number: int,
    port: int,
    http: int,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Node:
    folder.mkdir()
    address = f"127.0.0.1:{port}"
    command = [str(executable), "serve", "--data", str(folder / "data"), "--id", str(number)]
    command += ["--listen", address, "--http", f"127.0.0.1:{http}", *options]
    launch = Launch(address=address, command=tuple(command), folder=folder, env=env or {})
    return Node(f"Penstock broker {number}", launch)


def _zookeeper(folder: Path, port: int) -> Node:
    folder.mkdir()
    config = folder / "zoo.cfg"
    lines = (
        f"dataDir={folder / 'data'}",
        f"clientPort={port}",
        "clientPortAddress=127.0.0.1",
        "tickTime=1000",
        "maxClientCnxns=0",
        "admin.enableServer=false",
    )
    config.write_text("\n".join(lines) + "\n")
    command = ("java", HEAP, "-cp", ":".join(map(str, _JARS)), _MAIN, str(config))
    return Node("ZooKeeper", Launch(address=f"127.0.0.1:{port}", command=command, folder=folder))
