"""Changes that cannot be undone: asking first, and reporting what became of each thing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from penstock.cli.failure import CommandError
from penstock.cli.output import show_json

if TYPE_CHECKING:
    from penstock.admin import Results


def confirm(question: str) -> None:
    """Asks a person; a script has to pass --yes, so that nothing is lost by mistake."""
    if not sys.stdin.isatty():
        raise CommandError("nothing was changed: not a terminal, so pass --yes to confirm")
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed")


def report_deletion(kind: str, done: Results[str, None], json: bool) -> None:
    """Prints what was deleted; fails if something was not."""
    failed = {name: error.message for name, error in done.errors.items()}
    if json:
        show_json({"deleted": list(done.values), "failed": failed})
    else:
        for name in done.values:
            typer.echo(f"deleted {kind} {name}")
    if failed:
        raise CommandError("; ".join(f"{kind} {name} was not deleted: {reason}" for name, reason in failed.items()))
