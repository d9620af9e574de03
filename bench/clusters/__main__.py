"""The command: `python -m bench.clusters`."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import machine
from bench.__main__ import CACHE, DOCS, interrupt
from bench.clusters import plan
from bench.clusters.kafka import KafkaCluster
from bench.clusters.penstock import PenstockCluster
from bench.report.files import Header
from bench.report.telling import report
from bench.servers.kafka import DEFAULT_VERSION, KafkaServer
from bench.servers.penstock import PenstockServer
from bench.servers.process import Server, adopt_orphans
from bench.session import Session

KNOWN = {"penstock", "kafka"}


def main(
    smoke: Annotated[bool, typer.Option(help="Penstock alone, under a minute: does the program work?")] = False,
    only: Annotated[str, typer.Option(help="Comma-separated: columns (penstock, kafka), cases (failover ...).")] = "",
    kafka_version: Annotated[str, typer.Option(help="Apache Kafka's version.")] = DEFAULT_VERSION,
    out: Annotated[Path | None, typer.Option(help="Folder of the report.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder for the brokers' data; on the disk to measure.")] = None,
) -> None:
    """Measure three Penstock brokers beside three nodes of Apache Kafka: failover, throughput, recovery."""
    signal.signal(signal.SIGTERM, interrupt)
    adopt_orphans()
    console = Console()
    names, kinds = _chosen(only, smoke=smoke)
    base = data or CACHE / "data"
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=base))
    facts = machine.facts()
    session = Session(console, folder)
    clusters: dict[str, Server] = {"penstock": PenstockCluster(), "kafka": KafkaCluster(CACHE, kafka_version)}
    alone: dict[str, Server] = {"penstock": PenstockServer(), "kafka": KafkaServer(CACHE, kafka_version)}
    chosen = (plan.smoke if smoke else plan.full)(folder).only(kinds)
    try:
        for cases, servers in ((chosen.three, clusters), (chosen.one, alone)):
            if cases.cases:
                session.measure(cases, [server for name, server in servers.items() if name in names])
    except KeyboardInterrupt:
        console.print("interrupted; what was started is stopped")
        raise typer.Exit(130) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    header = Header(
        name="cluster",
        title="Three brokers",
        plan=chosen.three.name,
        machine=facts,
        versions=session.versions,
        clients=session.clients,
    )
    if not report(console, header, session.results, out or (None if smoke else DOCS)):
        raise typer.Exit(1)


def _chosen(only: str, *, smoke: bool) -> tuple[set[str], set[str]]:
    """Columns and kinds of cases; what is not chosen among is taken whole."""
    words = set(only.split(",")) if only else set()
    if unknown := words - KNOWN - plan.KINDS:
        known = ", ".join(sorted(KNOWN | plan.KINDS))
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}; known: {known}")
    return words & KNOWN or ({"penstock"} if smoke else KNOWN), words & plan.KINDS or plan.KINDS


if __name__ == "__main__":
    typer.run(main)
