"""The command: `python -m bench`."""

from __future__ import annotations

import resource
import shutil
import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from bench import machine, plan
from bench.report.files import Header
from bench.report.telling import report
from bench.servers.kafka import DEFAULT_VERSION, KafkaServer
from bench.servers.nats import NatsServer
from bench.servers.penstock import PenstockServer
from bench.servers.process import Server, TlsServer, adopt_orphans
from bench.servers.rabbitmq import RabbitServer
from bench.servers.redis import RedisServer
from bench.session import Session
from bench.target import Target

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "bench"
DOCS = ROOT / "docs" / "benchmarks"
OPEN_FILES = 8192
KNOWN = {"penstock", "kafka", "rabbitmq", "nats", "redis"}


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _chosen(only: str, *, smoke: bool, peers: bool) -> tuple[set[str], set[str]]:
    """Columns and kinds of cases; what is not chosen among is taken whole."""
    words = set(only.split(",")) if only else set()
    if unknown := words - KNOWN - plan.KINDS:
        known = ", ".join(sorted(KNOWN | plan.KINDS))
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}; known: {known}")
    usual = {"penstock"} if smoke else KNOWN if peers else {"penstock", "kafka"}
    return words & KNOWN or usual, words & plan.KINDS or plan.KINDS


def _target(text: str) -> Target:
    name, separator, address = text.partition("=")
    if not separator or ":" not in address:
        raise typer.BadParameter("a target is name=host:port")
    return Target(name=name, protocol="kafka", address=address, version="as found running")


def main(
    quick: Annotated[bool, typer.Option(help="Penstock and Kafka, goals only, about six minutes.")] = False,
    smoke: Annotated[bool, typer.Option(help="Penstock alone, seconds: does the program work?")] = False,
    only: Annotated[str, typer.Option(help="Comma-separated: columns (kafka, nats ...), cases (rebalance ...).")] = "",
    peers: Annotated[bool, typer.Option(help="Also RabbitMQ, NATS and Redis (full runs only).")] = True,
    target: Annotated[list[str] | None, typer.Option(help="name=host:port of a running Kafka-protocol server.")] = None,
    kafka_version: Annotated[str, typer.Option(help="Apache Kafka's version.")] = DEFAULT_VERSION,
    out: Annotated[Path | None, typer.Option(help="Folder of the report.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder for the brokers' data; on the disk to measure.")] = None,
) -> None:
    """Measure Penstock beside Apache Kafka and other brokers."""
    signal.signal(signal.SIGTERM, interrupt)
    adopt_orphans()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    console = Console()
    names, kinds = _chosen(only, smoke=smoke, peers=peers and not quick)
    base = data or CACHE / "data"
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=base))
    facts = machine.facts()
    session = Session(console, folder)
    compared: dict[str, Server] = {"penstock": PenstockServer(), "kafka": KafkaServer(CACHE, kafka_version)}
    alone: dict[str, Server] = {"rabbitmq": RabbitServer(), "nats": NatsServer(), "redis": RedisServer()}
    chosen = (plan.smoke if smoke else plan.quick if quick else plan.full)(folder).only(kinds)
    try:
        running = [_target(text) for text in target or ()]
        session.measure(chosen, [server for name, server in compared.items() if name in names], running)
        with_tls = plan.encrypted(chosen.name).only(kinds)
        if with_tls.cases:
            encrypting = [
                server.with_tls()
                for name, server in compared.items()
                if name in names and isinstance(server, TlsServer)
            ]
            session.measure(with_tls, encrypting)
        asked_too = plan.peers(folder).only(kinds)
        for name, server in alone.items():
            if name in names and asked_too.cases:
                session.measure(asked_too, [server])
    except KeyboardInterrupt:
        console.print("interrupted; what was started is stopped")
        raise typer.Exit(130) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    header = Header(
        plan=chosen.name,
        machine=facts,
        versions=session.versions,
        clients=session.clients,
    )
    if not report(console, header, session.results, out or (None if smoke else DOCS)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
