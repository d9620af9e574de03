"""The files of a run: NAME.json (every figure), NAME.md (the table), NAME.svg (the ratios to which there are goals)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill

from bench.measure import Results
from bench.report.plot import draw
from bench.report.table import BASE, OURS, rows, short

LINE_WIDTH = 120
"""Of prose in documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a reader must know beside the figures."""

    name: str = "latest"
    title: str = "Latest benchmark run"
    base: str = BASE
    """Whom the ratios are to."""
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d"))
    plan: str
    machine: Mapping[str, str | int | float]
    versions: Mapping[str, str]
    clients: Mapping[str, str]


def write(folder: Path, header: Header, results: Results, targets: Sequence[str]) -> None:
    """Write the files, replacing those of the last run of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{header.name}.json").write_text(json.dumps(_document(header, results, targets), indent=1) + "\n")
    (folder / f"{header.name}.md").write_text(_markdown(header, results, targets))
    if any(measure.goal is not None for measure in results.measures.values()):
        draw(folder / f"{header.name}.svg", results)


def _document(header: Header, results: Results, targets: Sequence[str]) -> dict[str, object]:
    figures = []
    for key, measure in results.measures.items():
        seen = results.values.get(key, {})
        figures.append(
            {
                "measure": measure.label,
                "unit": measure.unit,
                "better": "higher" if measure.higher_is_better else "lower",
                "goal_ratio": measure.goal,
                "bound": measure.bound,
                f"ratio_to_{short(header.base).lower()}": results.ratio(key, OURS, header.base),
                "targets": {
                    target: {
                        "median": results.median(key, target),
                        "best": results.best(key, target),
                        "worst": results.worst(key, target),
                        "rounds": [round(value, 4) for value in seen[target]],
                    }
                    for target in targets
                    if target in seen
                },
            }
        )
    return {
        "date": header.date,
        "plan": header.plan,
        "machine": dict(header.machine),
        "versions": dict(header.versions),
        "clients": dict(header.clients),
        "figures": figures,
        "notes": results.notes,
        "failures": results.failures,
    }


def _cells_hold(results: Results) -> str:
    with_worst = any(measure.shows_worst for measure in results.measures.values())
    return "Median of the rounds, best round in brackets" + (" (of interruptions the worst)" if with_worst else "")


def _markdown(header: Header, results: Results, targets: Sequence[str]) -> str:
    lines = [
        f"# {header.title}",
        "",
        fill(
            f"{header.date}, {header.plan} run. {_cells_hold(results)}; the ratio is Penstock's median to "
            f"{header.base}'s in the same run. How to read and rerun it: [README](README.md).",
            LINE_WIDTH,
        ),
        "",
        "| machine | |",
        "|---|---|",
        *(f"| {name.replace('_', ' ')} | {value} |" for name, value in header.machine.items()),
        "",
        "| broker | version | client |",
        "|---|---|---|",
        *(f"| {name} | {header.versions[name]} | {header.clients[name]} |" for name in targets),
        "",
        "| measure | unit | " + " | ".join(targets) + f" | ratio to {short(header.base)} | goal |",
        "|---|---|" + "---:|" * len(targets) + "---:|---:|",
    ]
    marks = {True: " ✓", False: " ✗", None: ""}
    for row in rows(results, targets, header.base):
        cells = " | ".join(row.cells)
        lines.append(f"| {row.label} | {row.unit} | {cells} | {row.ratio}{marks[row.met]} | {row.goal} |")
    if results.notes or results.failures:
        lines += ["", "Notes:", ""]
        lines += [
            fill(note, LINE_WIDTH, initial_indent="- ", subsequent_indent="  ")
            for note in results.notes + results.failures
        ]
    return "\n".join(lines) + "\n"
