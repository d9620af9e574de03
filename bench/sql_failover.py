"""How long producing pauses when a broker dies whose cluster is two or three brokers on one database.

    python -m bench.sql_failover [--database mariadb] [--rounds 5] [--smoke]

The load and the counting are those of `bench.clusters`: an idempotent producer with acks=all and default settings sends
to six partitions, a leader is restarted or killed, and every acknowledged message has to be stored once. Rounds are of
each leader in turn.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.__main__ import CACHE, interrupt
from bench.cases.failover import Failover
from bench.clusters.database import DatabaseCluster
from bench.plan import Plan
from bench.report.table import rows
from bench.servers.process import adopt_orphans
from bench.session import Session

SIZES = (2, 3)


def plan(rounds: int, *, is_smoke: bool) -> Plan:
    if is_smoke:
        return Plan("smoke", (Failover(is_planned=False, partitions=3, rest_s=0.2, rounds=1),), 0)
    return Plan(
        "SQL failover", (Failover(is_planned=True, rounds=rounds), Failover(is_planned=False, rounds=rounds)), 0
    )


def main(
    smoke: Annotated[bool, typer.Option(help="Two brokers, one kill: does the program work?")] = False,
    database: Annotated[str, typer.Option(help="mariadb or postgresql.")] = "mariadb",
    rounds: Annotated[int, typer.Option(help="How often each leader is hurt.")] = 5,
    data: Annotated[Path | None, typer.Option(help="Folder for the data; on the disk to measure.")] = None,
) -> None:
    """Measure the pause when a leader is restarted or killed, with two and three brokers on one database."""
    signal.signal(signal.SIGTERM, interrupt)
    adopt_orphans()
    console = Console()
    base = data or CACHE / "data"
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=base))
    session = Session(console, folder)
    chosen = plan(rounds, is_smoke=smoke)
    try:
        # One after the other: together they would share the cores.
        for size in SIZES[:1] if smoke else SIZES:
            session.measure(chosen, [DatabaseCluster(database, size)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = list(session.versions)
    print(f"| median (worst round), {database} | unit | {' | '.join(told)} |\n|---|---|{'---:|' * len(told)}")
    for row in rows(session.results, told):
        print(f"| {row.label} | {row.unit} | {' | '.join(row.cells)} |")
    for failure in session.results.notes + session.results.failures:
        print(f"- {failure}")
    if not told or session.results.failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
