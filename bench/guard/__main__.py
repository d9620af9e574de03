"""The command: `python -m bench.guard`, which fails when a cost has crept in."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.guard.costs import Cost, costs
from bench.guard.rounds import Figure, measure
from bench.servers.penstock import PenstockServer
from bench.servers.plain import TMPFS, plain_server
from bench.servers.process import adopt_orphans
from bench.target import start

BASELINE = Path(__file__).with_name("baseline.json")
ROUNDS = 9


def main(
    update: Annotated[bool, typer.Option("--update", help="Write what is measured as the new baseline.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="One short round: does the program work?")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="A figure is the median of this many.")] = ROUNDS,
    baseline: Annotated[Path, typer.Option(help="The figures to compare with.")] = BASELINE,
) -> None:
    """Measure what requests cost the broker, beside a plain socket, and compare with the baseline."""
    adopt_orphans()
    chosen = costs(is_smoke=smoke)
    found: dict[str, Figure] = {}
    with plain_server() as plain:
        for is_in_memory, place in ((False, None), (True, TMPFS if TMPFS.is_dir() else None)):
            here = [cost for cost in chosen if cost.is_in_memory is is_in_memory]
            with tempfile.TemporaryDirectory(dir=place) as folder:
                target, _ = start(PenstockServer(), Path(folder) / "broker")
                try:
                    found |= measure(target, plain, here, 1 if smoke else rounds)
                finally:
                    target.stop()
    if update:
        ratios = {name: round(figure.ratio, 2) for name, figure in found.items()}
        baseline.write_text(json.dumps(ratios, indent=2) + "\n")
    risen = tell(Console(), chosen, found, json.loads(baseline.read_text()))
    if risen:
        typer.echo(
            f"more CPU than the baseline allows: {', '.join(risen)}. Run it again on a machine at rest; if it stays, "
            "profile it. If the cost is worth it, run python -m bench.guard --update and commit the baseline.",
            err=True,
        )
        raise typer.Exit(1)


def tell(
    console: Console, chosen: Sequence[Cost], found: Mapping[str, Figure], before: Mapping[str, float]
) -> list[str]:
    """Prints what was found; returns the names of costs that have risen by more than their margin."""
    table = Table("cost", "broker", "plain socket", "ratio", "baseline", "change", "margin")
    risen = []
    for cost in chosen:
        figure, old = found[cost.name], before[cost.name]
        change = figure.ratio / old - 1
        if change > cost.margin:
            risen.append(cost.name)
        table.add_row(
            cost.name,
            f"{figure.broker:.3g} {cost.unit}",
            f"{figure.plain:.3g} {cost.unit}",
            f"{figure.ratio:.2f}",
            f"{old:.2f}",
            f"{change:+.0%}",
            f"{cost.margin:.0%}",
        )
    console.print(table)
    return risen


if __name__ == "__main__":
    typer.run(main)
