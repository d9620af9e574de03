"""How a run ends: figures on the terminal, files in a folder, and whether all went well."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bench.measure import Results
from bench.report.files import Header, write
from bench.report.table import terminal


def report(console: Console, header: Header, results: Results, where: Path | None) -> bool:
    """Tells what was measured, and writes it into a folder if one is named; whether all of it was measured."""
    targets = list(header.versions)
    console.print(terminal(results, targets, header.base))
    for note in results.notes + results.failures:
        console.print(f"- {note}", markup=False)
    if where is not None and results.values:
        write(where, header, results, targets)
    return bool(targets) and not results.failures
