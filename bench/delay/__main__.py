"""The command: `python -m bench.delay`."""

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
from bench.delay.clients import TimerClient
from bench.delay.kafka_timers import KafkaTimers
from bench.delay.rocketmq_timers import RocketTimers
from bench.delay.run import DelayRun
from bench.measure import Results
from bench.report.files import Header
from bench.report.telling import report
from bench.run import FAILURES, one_line
from bench.servers.penstock import PenstockServer
from bench.servers.process import Server, adopt_orphans
from bench.servers.rocketmq import RocketServer

KNOWN = ("penstock", "rocketmq")
PEER = RocketServer.name


def main(
    pending: Annotated[int, typer.Option(min=1, help="Messages that wait for the next thirty days.")] = 10_000_000,
    peer_pending: Annotated[int, typer.Option(min=1, help="The same, in the peer.")] = 1_000_000,
    rate: Annotated[int, typer.Option(min=1, help="Messages due a second.")] = 10_000,
    seconds: Annotated[int, typer.Option(min=1, help="For how long.")] = 30,
    burst: Annotated[int, typer.Option(min=1, help="Messages due in one second.")] = 1_000_000,
    near: Annotated[int, typer.Option(min=1, help="Messages due within the hour, for what each takes of memory.")] = (
        1_000_000
    ),
    settle: Annotated[float, typer.Option(min=0.1, help="Seconds that a broker is left alone between phases.")] = 5.0,
    only: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(KNOWN)}.")] = ",".join(KNOWN),
    out: Annotated[Path | None, typer.Option(help="Folder of the report.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder for the brokers' data; on the disk to measure.")] = None,
) -> None:
    """Measure delayed messages: memory, lateness, a burst, a restart; beside RocketMQ."""
    signal.signal(signal.SIGTERM, interrupt)
    adopt_orphans()
    console = Console()
    names = set(only.split(","))
    if unknown := names - set(KNOWN):
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(KNOWN)}")
    base = data or CACHE / "data"
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=base))
    facts = machine.facts()
    results, versions, clients = Results(), dict[str, str](), dict[str, str]()
    chosen: dict[str, tuple[Server, TimerClient, int]] = {
        "penstock": (PenstockServer(), KafkaTimers(), pending),
        "rocketmq": (RocketServer(CACHE), RocketTimers(), peer_pending),
    }
    try:
        for name in (name for name in KNOWN if name in names):
            server, client, count = chosen[name]
            asked = DelayRun(pending=count, rate=rate, seconds=seconds, burst=burst, near=near, settle_s=settle)
            place = folder / name
            try:
                server.obtain()
                results.add(asked, server.name, asked.run(server, client, place, console.print))
                versions[server.name], clients[server.name] = server.version, client.client
                results.notes.append(f"{server.name} had {count:,} messages pending.")
            except FAILURES as error:
                results.failures.append(f"{server.name} failed: {one_line(error)}")
            finally:
                shutil.rmtree(place, ignore_errors=True)
    except KeyboardInterrupt:
        console.print("interrupted; what was started is stopped")
        raise typer.Exit(130) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    header = Header(
        name="delay",
        title="Delayed messages",
        base=PEER,
        plan=f"{rate:,} a second, bursts of {burst:,}",
        machine=facts,
        versions=versions,
        clients=clients,
    )
    if not report(console, header, results, out or DOCS):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
