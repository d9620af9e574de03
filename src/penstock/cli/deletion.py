"""Deleting several things at once: asking first, and saying of each what became of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import typer

from penstock.cli.failure import CommandError
from penstock.cli.output import show_json


def confirm(question: str) -> None:
    """Asks a person; a script has to say --yes, so that nothing is lost by a forgotten word."""
    if not sys.stdin.isatty():
        raise CommandError("nobody to ask here whether that is meant: pass --yes")
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed")


def report_deletion(kind: str, answers: Mapping[str, Any], why: Callable[[Any], str], json: bool) -> None:
    """Waits for the answer to each deletion; fails if one of them did, after saying what was deleted."""
    from confluent_kafka import KafkaException

    deleted: list[str] = []
    failed: dict[str, str] = {}
    for name, answer in answers.items():
        try:
            answer.result()
            deleted.append(name)
        except KafkaException as error:
            failed[name] = why(error)
    if json:
        show_json({"deleted": deleted, "failed": failed})
    else:
        for name in deleted:
            typer.echo(f"deleted {kind} {name}")
    if failed:
        raise CommandError("; ".join(f"{kind} {name} was not deleted: {reason}" for name, reason in failed.items()))
