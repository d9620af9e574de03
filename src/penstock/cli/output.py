"""Tables for people, JSON for scripts, both on standard output.

Rules:
- On a terminal a table fits the width; in a pipe nothing is wrapped or cut.
- Text from topics and settings is printed as it is, never as markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

import typer

PIPE_WIDTH = 100_000


def show_json(value: object) -> None:
    """One JSON document, on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def show_table(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Columns under headings; those named in `right` are numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        # People search for and copy the first column: it is never wrapped.
        justify: Literal["left", "right"] = "right" if heading in right else "left"
        table.add_column(heading.upper(), justify=justify, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    terminal = sys.stdout.isatty()
    Console(highlight=False, markup=False, width=None if terminal else PIPE_WIDTH).print(table)


def pair(text: str, what: str) -> tuple[str, str]:
    """Splits NAME=VALUE; a usage error of the option if it is not that."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=what)
    return name.strip(), value


def pairs(texts: Iterable[str], what: str) -> dict[str, str]:
    """NAME=VALUE texts as a mapping; a name that is given twice is an error."""
    found: dict[str, str] = {}
    for text in texts:
        name, value = pair(text, what)
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=what)
        found[name] = value
    return found
