"""Tables for people, JSON for scripts, both on standard output.

Rules:
- A table on a terminal fits the terminal; in a pipe nothing is wrapped or cut.
- Text from topics and settings is shown as it is, never read as markup.
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
        # The first column is what people search for and copy: it is never broken.
        justify: Literal["left", "right"] = "right" if heading in right else "left"
        table.add_column(heading.upper(), justify=justify, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    terminal = sys.stdout.isatty()
    Console(highlight=False, markup=False, width=None if terminal else PIPE_WIDTH).print(table)


def pair(text: str, what: str) -> tuple[str, str]:
    """Splits NAME=VALUE, or refuses it under the name of the option it came from."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=what)
    return name.strip(), value


def pairs(texts: Iterable[str], what: str) -> dict[str, str]:
    """NAME=VALUE texts as a mapping; the same name twice is refused rather than guessed about."""
    found: dict[str, str] = {}
    for text in texts:
        name, value = pair(text, what)
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=what)
        found[name] = value
    return found
