"""The report as rows of text: the same cells for the terminal and for markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from bench.measure import Results

OURS = "Penstock"
BASE = "Apache Kafka"


@dataclass(frozen=True, slots=True)
class Row:
    """One measure with a cell a target."""

    label: str
    unit: str
    cells: tuple[str, ...]
    ratio: str
    goal: str
    met: bool | None


def short(name: str) -> str:
    """The name of a broker in a heading."""
    return name.removeprefix("Apache ")


def number(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def rows(results: Results, targets: Sequence[str], base: str = BASE) -> Iterator[Row]:
    """Rows in the order they were measured; medians, in brackets the best round, or the worst where that counts."""
    for key, measure in results.measures.items():
        if measure.detail or key not in results.values:
            continue
        cells = []
        for target in targets:
            beside = results.worst if measure.shows_worst else results.best
            median, best = results.median(key, target), beside(key, target)
            several = len(results.values[key].get(target, ())) > 1
            cells.append(f"{number(median)} ({number(best)})" if several else number(median))
        ratio = results.ratio(key, OURS, base)
        sign = "≥" if measure.higher_is_better else "≤"
        goal = "" if measure.goal is None else f"{sign} {measure.goal:g}"
        met = None if ratio is None else measure.meets(ratio)
        if measure.bound is not None:
            worst = results.worst(key, OURS)
            goal = f"{sign} {number(measure.bound)} {measure.unit}"
            met = None if worst is None else measure.keeps_bound(worst)
        yield Row(
            label=measure.label,
            unit=measure.unit,
            cells=tuple(cells),
            ratio="" if ratio is None else f"{ratio:.2f}",
            goal=goal,
            met=met,
        )


def terminal(results: Results, targets: Sequence[str], base: str = BASE) -> Table:
    """The table for a person at a terminal."""
    table = Table(title="median (best; of interruptions the worst)", header_style="bold")
    table.add_column("measure")
    table.add_column("unit", style="dim")
    for target in targets:
        table.add_column(target, justify="right")
    table.add_column(f"ratio to {short(base)}", justify="right")
    table.add_column("goal", justify="right", style="dim")
    colours = {True: "green", False: "red", None: "default"}
    for row in rows(results, targets, base):
        ratio = f"[{colours[row.met]}]{row.ratio}[/]" if row.ratio else ""
        table.add_row(row.label, row.unit, *row.cells, ratio, row.goal)
    return table
