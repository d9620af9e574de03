"""`penstock deadletter`: list, show, resend and purge messages that a group has given up."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import cluster_of
from penstock.cli.formats import DisplayedRecord, exact, headers_text, readable, time_text
from penstock.cli.interrupt import watch
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import show_json, show_table
from penstock.cli.positions import time_option
from penstock.cli.prompts import confirm

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.admin import DeadLetter, DeadLetterId, DeadLetterSelection, Results

app = typer.Typer(no_args_is_help=True, help="List, show, resend and purge messages that a group has given up.")

_ID_HELP = "Ids such as 3/42, as `list` shows them."
Group = Annotated[str, typer.Argument(metavar="GROUP", help="Group whose dead letters they are.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help=_ID_HELP)]
NeededIds = Annotated[list[str], typer.Argument(metavar="ID...", help=_ID_HELP)]
SinceTime = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Given up at or after: an ISO time, or '2h ago'.")
]
UntilTime = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Given up before: an ISO time, or '2h ago'.")
]
ErrorText = Annotated[str | None, typer.Option("--error", metavar="TEXT", help="Error contains this text.")]
From = Annotated[
    str | None, typer.Option("--origin", metavar="TOPIC[/PARTITION[/OFFSET]]", help="First sent to this place.")
]
All = Annotated[bool, typer.Option("--all", help="All dead letters that wait.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show which dead letters would change; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_ERROR_CHARS = 80
_TIMEOUT_S = 30.0
"""Transactions that resend or purge wait for those that another process has left open."""


@app.command("list")
def list_(
    context: typer.Context,
    group: Group,
    since: SinceTime = None,
    until: UntilTime = None,
    error: ErrorText = None,
    origin: From = None,
    settled: Annotated[bool, typer.Option("--settled", help="Include those that were resent or purged.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Maximum number to list.")] = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """List dead letters with their origin, attempts and error."""
    selection = _selection(None, since, until, error, origin, settled)
    letters = cluster_of(context, bootstrap, timeout_s=_TIMEOUT_S).dead_letters
    with _progress() as progress:
        found = letters.list(group, selection, limit=sys.maxsize - 1 if count is None else count, progress=progress)
    if json:
        show_json([_summary(letter) for letter in found.items])
    elif found.items:
        _show(found.items)
    else:
        typer.echo(f"group {group} has no dead letters{'' if settled else ' that wait'}", err=True)


@app.command()
def show(context: typer.Context, group: Group, ids: NeededIds, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Show dead letters in full, including those that were resent or purged and are still stored."""
    selection = _selection(ids)
    letters = cluster_of(context, bootstrap, timeout_s=_TIMEOUT_S).dead_letters
    with _progress() as progress:
        found = letters.find(group, selection.ids, progress=progress).all()
    if json:
        show_json([_full(letter) for letter in found.values()])
        return
    for number, letter in enumerate(found.values()):
        if number:
            typer.echo()
        _show_full(letter)


@app.command()
def resend(
    context: typer.Context,
    group: Group,
    ids: Ids = None,
    since: SinceTime = None,
    until: UntilTime = None,
    error: ErrorText = None,
    origin: From = None,
    all_: All = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Deliver dead letters to their group again, with all attempts ahead. Each is resent once, even if you repeat
    the command.
    """
    selection = _selection(ids, since, until, error, origin)
    _require_choice(selection, all_)
    letters = cluster_of(context, bootstrap, timeout_s=_TIMEOUT_S).dead_letters
    with _progress() as progress:
        change = letters.preview if dry_run else letters.resend
        done = change(group, selection, progress=progress)
    _report("resent", "would be resent", group, done, dry_run, json)


@app.command()
def purge(
    context: typer.Context,
    group: Group,
    ids: Ids = None,
    since: SinceTime = None,
    until: UntilTime = None,
    error: ErrorText = None,
    origin: From = None,
    all_: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Delete dead letters: they cannot be resent any more."""
    selection = _selection(ids, since, until, error, origin)
    _require_choice(selection, all_)
    letters = cluster_of(context, bootstrap, timeout_s=_TIMEOUT_S).dead_letters
    if dry_run or not yes:
        with _progress() as progress:
            done = letters.preview(group, selection, progress=progress)
    if not dry_run:
        if not yes:
            confirm(f"Delete {_letters(len(done.values))} of group {group} for good?")
        with _progress() as progress:
            done = letters.purge(group, selection, progress=progress)
    _report("purged", "would be purged", group, done, dry_run, json)


def _selection(
    ids: list[str] | None,
    since: str | None = None,
    until: str | None = None,
    error: str | None = None,
    origin: str | None = None,
    settled: bool = False,
) -> DeadLetterSelection:
    from penstock.admin import DeadLetterSelection, DeadLetterState, parse_dead_letter_id

    try:
        named = frozenset(parse_dead_letter_id(text) for text in ids or ())
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong), param_hint="ID") from None
    return DeadLetterSelection(
        ids=named,
        since_ms=time_option(since, "--since"),
        until_ms=time_option(until, "--until"),
        error=error,
        origin=origin,
        states=frozenset(DeadLetterState) if settled else frozenset({DeadLetterState.WAITING}),
    )


def _require_choice(selection: DeadLetterSelection, all_: bool) -> None:
    has_filter = any(
        value is not None for value in (selection.since_ms, selection.until_ms, selection.error, selection.origin)
    )
    if not selection.ids and not has_filter and not all_:
        raise typer.BadParameter(
            "choose dead letters: IDs, --since, --until, --error, --origin, or --all", param_hint="ID"
        )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal; Ctrl-C takes effect between records, where it does no harm."""
    with watch() as interrupt, _bar() as move:

        def progress(what: str, done: int, total: int) -> None:
            if interrupt.asked:
                raise KeyboardInterrupt
            move(what, done, total)

        yield progress


@contextmanager
def _bar() -> Iterator[Any]:
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _report(
    done_word: str,
    would_word: str,
    group: str,
    done: Results[DeadLetterId, None],
    dry_run: bool,
    json: bool,
) -> None:
    """What was done, and which of those that were named were not waiting."""
    if json:
        show_json(
            {
                "group": group,
                "dry_run": dry_run,
                done_word: [str(each) for each in done.values],
                "skipped": [str(each) for each in done.errors],
            }
        )
        return
    typer.echo(f"{_letters(len(done.values))} of group {group} {would_word if dry_run else done_word}")
    for error in done.errors.values():
        typer.echo(error.message, err=True)


def _letters(count: int) -> str:
    return f"{count} dead letter{'' if count == 1 else 's'}"


def _show(found: Iterable[DeadLetter]) -> None:
    def shortened(text: str) -> str:
        return text if len(text) <= _ERROR_CHARS else text[: _ERROR_CHARS - 1] + "…"

    show_table(
        ("id", "died", "origin", "attempts", "key", "state", "error"),
        [
            (
                letter.id,
                time_text(letter.died_ms),
                f"{letter.origin.topic}/{letter.origin.partition}/{letter.origin.offset}",
                letter.attempts,
                readable(letter.received.key),
                letter.state.value,
                shortened(readable(letter.error.encode())),
            )
            for letter in found
        ],
        right=("attempts",),
    )


def _summary(letter: DeadLetter) -> dict[str, object]:
    origin = letter.origin
    return {
        "id": str(letter.id),
        "died": letter.died_ms,
        "origin": {
            "topic": origin.topic,
            "partition": origin.partition,
            "offset": origin.offset,
            "timestamp": origin.timestamp_ms,
        },
        "attempts": letter.attempts,
        "error": letter.error,
        "key": exact(letter.received.key),
        "state": letter.state.value,
    }


def _full(letter: DeadLetter) -> dict[str, object]:
    headers = [[name, exact(value)] for name, value in letter.received.headers]
    return {**_summary(letter), "value": exact(letter.received.value), "headers": headers}


def _show_full(letter: DeadLetter) -> None:
    received, origin = letter.received, letter.origin
    record = DisplayedRecord(
        topic=received.topic,
        partition=received.partition,
        offset=received.offset,
        timestamp_ms=received.timestamp_ms,
        key=received.key,
        value=received.value,
        headers=received.headers,
    )
    typer.echo(f"id        {letter.id} ({letter.state.value})")
    typer.echo(f"given up  {time_text(letter.died_ms)}, after {letter.attempts} attempts")
    typer.echo(f"origin    {origin.topic}-{origin.partition} @{origin.offset} {time_text(origin.timestamp_ms)}")
    typer.echo(f"error     {readable(letter.error.encode())}")
    typer.echo(f"key       {readable(received.key, absent='<null>')}")
    typer.echo(f"headers   {headers_text(record)}")
    typer.echo(f"value     {readable(received.value, absent='<null>')}")
