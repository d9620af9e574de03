"""`python -m penstock.cli.serve.local_cluster`: ZooKeeper and some brokers on this machine, to try things with.

The brokers are those of `penstock serve --brokers`, under the same supervisor, with two differences: a broker that is
killed stays away long enough to see how the others react, and each process logs to a file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock import logs
from penstock.cli.failure import CommandError
from penstock.cli.serve.child import Child
from penstock.cli.serve.siblings import Given, children, siblings
from penstock.cli.serve.supervisor import Pauses, supervise
from penstock.cli.serve.welcome import addresses, reached_at, table, what_to_try
from penstock.config.loader import load
from penstock.errors import PenstockError

CHROOT = "/penstock"

# Where Debian's packages put what ZooKeeper is made of.
_JARS = tuple(Path("/usr/share/java") / name for name in ("zookeeper.jar", "slf4j-simple.jar"))


def cluster(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder for all data and logs.")] = Path("data/cluster"),
    brokers: Annotated[int, typer.Option(min=1, max=9, help="Number of brokers.")] = 3,
    port: Annotated[int, typer.Option(help="Port of the first broker; the others follow.")] = 9092,
    http: Annotated[int, typer.Option(help="Port of the first broker's metrics; the others follow.")] = 8092,
    zookeeper: Annotated[int, typer.Option(help="Port of ZooKeeper.")] = 2181,
    away: Annotated[int, typer.Option(min=0, help="Seconds until a killed process is restarted.")] = 20,
) -> None:
    """Run ZooKeeper and brokers on loopback until Ctrl-C."""
    flags = {
        "broker.id": "1",
        "broker.data": str(data),
        "broker.listen": f"127.0.0.1:{port}",
        "broker.http": f"127.0.0.1:{http}",
        "broker.default_replication_factor": str(min(3, brokers)),
        "cluster.coordinator": f"zk://127.0.0.1:{zookeeper}{CHROOT}",
    }
    loaded = load(None, os.environ, flags)
    logs.configure(loaded.config.logging.level, loaded.config.logging.format)
    several = siblings(loaded, brokers, socket.gethostname())
    _refuse_taken("--zookeeper", range(zookeeper, zookeeper + 1))
    _refuse_taken("--port", range(port, port + brokers))
    _refuse_taken("--http", range(http, http + brokers))
    data.mkdir(parents=True, exist_ok=True)
    tree = _zookeeper(data / "zookeeper", zookeeper)
    members = children(Given(None, flags), several, logs=data)

    def on_ready() -> None:
        typer.echo(_welcome(tree, zookeeper, members, data, away))

    raise typer.Exit(supervise([[tree], members], Pauses(first_s=away, longest_s=away), on_ready))


def _zookeeper(folder: Path, port: int) -> Child:
    java = shutil.which("java")
    missing = [str(jar) for jar in _JARS if not jar.exists()]
    if java is None or missing:
        raise CommandError(f"ZooKeeper is not installed ({', '.join(missing) or 'java'}): apt-get install zookeeper")
    folder.mkdir(exist_ok=True)
    config = folder / "zoo.cfg"
    lines = (
        f"dataDir={folder.absolute() / 'data'}",
        f"clientPort={port}",
        "clientPortAddress=127.0.0.1",
        "tickTime=1000",
        "maxClientCnxns=0",
        "admin.enableServer=false",
    )
    config.write_text("\n".join(lines) + "\n")
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = [java, "-Xmx256m", "-cp", ":".join(map(str, _JARS)), main, str(config)]
    return Child("ZooKeeper", command, log=folder / "log", port=port)


def _welcome(tree: Child, port: int, brokers: Sequence[Child], data: Path, away_s: int) -> str:
    at = reached_at(addresses(brokers[0])[0])
    return f"""\
A cluster is ready.
{table(brokers)}
  ZooKeeper       127.0.0.1:{port}   pid {tree.pid}
  data and logs   {data}

{what_to_try()}
  penstock broker list{at}
  penstock topic create orders --partitions 6{at}
  penstock send orders "hello"{at}
  penstock tail orders --follow{at}
then kill a broker and watch others take over its partitions; it returns after {away_s} s:
  kill -9 {brokers[-1].pid}
  penstock broker list{at}
Press Ctrl-C to stop everything; the data stays."""


def _refuse_taken(option: str, ports: range) -> None:
    for port in ports:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            raise CommandError(
                f"port {port} is in use; "
                f"choose another one with: python -m penstock.cli.serve.local_cluster {option} PORT"
            )


if __name__ == "__main__":
    try:
        typer.run(cluster)
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        sys.exit(1)
