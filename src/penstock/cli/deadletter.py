"""`penstock deadletter`: messages that nobody tries any more, looked at, sent again or thrown away."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.client import require_listener
from penstock.cli.deletion import confirm
from penstock.cli.failure import CommandError
from penstock.cli.formats import Shown as Record
from penstock.cli.formats import exact, headers_text, readable, time_text
from penstock.cli.interrupt import watch
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import show_json, show_table
from penstock.cli.positions import Since, parse_position
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from penstock.sdk.receive.deadletters import DeadLetters
    from penstock.sdk.receive.letters import Letter, LetterId, Selection

app = typer.Typer(no_args_is_help=True, help="Messages that a group has given up: list, show, resend and purge them.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Group whose messages they are.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Letters such as 3/42, as `list` shows them.")]
NeededIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Letters such as 3/42, as `list` shows them.")]
SinceTime = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Died then or later: an ISO time, or '2h ago'.")
]
UntilTime = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Died before: an ISO time, or '2h ago'.")
]
ErrorText = Annotated[str | None, typer.Option("--error", metavar="TEXT", help="Whose error has this text in it.")]
From = Annotated[
    str | None, typer.Option("--origin", metavar="TOPIC[/PARTITION[/OFFSET]]", help="That were there first.")
]
All = Annotated[bool, typer.Option("--all", help="All that wait.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say which ones are meant.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_ERROR_CHARS = 80


@app.command("list")
def list_(
    context: typer.Context,
    group: Group,
    since: SinceTime = None,
    until: UntilTime = None,
    error: ErrorText = None,
    origin: From = None,
    settled: Annotated[bool, typer.Option("--settled", help="Also those that were resent or purged.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="At most so many.")] = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """List dead letters with their origin, their attempts and their error."""
    selection = _selection(None, since, until, error, origin, settled)
    found: list[Letter] = []
    with _opened(context, bootstrap, group) as letters:
        for letter in letters.letters(selection):
            found.append(letter)
            if len(found) == count:
                break
    found.sort(key=lambda letter: letter.id)
    if json:
        show_json([_summary(letter) for letter in found])
    elif found:
        _show(found)
    else:
        typer.echo(f"group {group} has no dead letters{'' if settled else ' that wait'}", err=True)


@app.command()
def show(context: typer.Context, group: Group, ids: NeededIds, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Show letters in full, also those that were resent or purged and are still there."""
    selection = _selection(ids, settled=True)
    with _opened(context, bootstrap, group) as letters:
        found = {letter.id: letter for letter in letters.letters(selection)}
    _require(selection, set(found))
    if json:
        show_json([_full(found[each]) for each in sorted(found)])
        return
    for number, each in enumerate(sorted(found)):
        if number:
            typer.echo()
        _show_full(found[each])


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
    """Give letters to their group once more, with all attempts before them. A letter is sent once, however often
    asked.
    """
    selection = _selection(ids, since, until, error, origin)
    _require_choice(selection, all_)
    with _opened(context, bootstrap, group) as letters:
        done = [letter.id for letter in letters.letters(selection)] if dry_run else letters.resend(selection)
    _report("resent", "would be resent", group, selection, done, dry_run, json)


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
    """Throw letters away: they cannot be resent any more."""
    selection = _selection(ids, since, until, error, origin)
    _require_choice(selection, all_)
    done: list[LetterId] = []
    if dry_run or not yes:
        with _opened(context, bootstrap, group) as letters:
            done = [letter.id for letter in letters.letters(selection)]
    if not dry_run:
        if not yes:
            confirm(f"throw away {_letters(len(done))} of group {group} for good?")
        with _opened(context, bootstrap, group) as letters:
            done = letters.purge(selection)
    _report("purged", "would be purged", group, selection, done, dry_run, json)


def _selection(
    ids: list[str] | None,
    since: str | None = None,
    until: str | None = None,
    error: str | None = None,
    origin: str | None = None,
    settled: bool = False,
) -> Selection:
    from penstock.sdk.receive.letters import Selection, State, parse_id

    try:
        named = frozenset(parse_id(text) for text in ids or ())
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong), param_hint="ID") from None
    return Selection(
        ids=named,
        since_ms=_time(since, "--since"),
        until_ms=_time(until, "--until"),
        error=error,
        origin=origin,
        states=frozenset(State) if settled else frozenset({State.WAITING}),
    )


def _time(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    try:
        position = parse_position(text, SystemClock().now_ms())
    except ValueError:
        position = None
    if not isinstance(position, Since):
        raise typer.BadParameter(
            f"{text!r}: allowed is a time such as 2026-03-01T12:00:00Z, or a while such as '10m ago'", param_hint=option
        )
    return position.time_ms


def _require_choice(selection: Selection, all_: bool) -> None:
    has_filter = any(
        value is not None for value in (selection.since_ms, selection.until_ms, selection.error, selection.origin)
    )
    if not selection.ids and not has_filter and not all_:
        raise typer.BadParameter("say which: IDs, --since, --until, --error, --origin, or --all", param_hint="ID")


def _require(selection: Selection, found: set[LetterId]) -> None:
    if missing := sorted(selection.ids - found):
        raise CommandError(f"there is no dead letter {', '.join(map(str, missing))}")


@contextmanager
def _opened(context: typer.Context, bootstrap: str | None, group: str) -> Iterator[DeadLetters]:
    """The letters of a group, with a bar on a terminal while they are read, and Ctrl-C where it does no harm."""
    from penstock.sdk.access import Access
    from penstock.sdk.receive.deadletters import DeadLetters

    address = bootstrap_of(context, bootstrap)
    require_listener(address)
    access = Access(address, client_id="penstock-cli", settings={"log_level": 0})
    with watch() as interrupt, _bar() as move:

        def progress(what: str, done: int, total: int) -> None:
            if interrupt.asked:
                raise KeyboardInterrupt
            move(what, done, total)

        with DeadLetters(access, group, progress) as letters:
            yield letters


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
    selection: Selection,
    done: list[LetterId],
    dry_run: bool,
    json: bool,
) -> None:
    """What was done, and which of those that were named were not waiting."""
    word = would_word if dry_run else done_word
    skipped = sorted(selection.ids - set(done))
    if json:
        show_json(
            {
                "group": group,
                "dry_run": dry_run,
                done_word: [str(each) for each in done],
                "skipped": [str(each) for each in skipped],
            }
        )
        return
    typer.echo(f"{_letters(len(done))} of group {group} {word}")
    for each in skipped:
        typer.echo(f"{each} does not wait: it was resent or purged before, or is not there", err=True)


def _letters(count: int) -> str:
    return f"{count} dead letter{'' if count == 1 else 's'}"


def _show(found: list[Letter]) -> None:
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


def _summary(letter: Letter) -> dict[str, object]:
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


def _full(letter: Letter) -> dict[str, object]:
    headers = [[name, exact(value)] for name, value in letter.received.headers]
    return {**_summary(letter), "value": exact(letter.received.value), "headers": headers}


def _show_full(letter: Letter) -> None:
    received, origin = letter.received, letter.origin
    record = Record(
        topic=received.topic,
        partition=received.partition,
        offset=received.offset,
        timestamp_ms=received.timestamp_ms,
        key=received.key,
        value=received.value,
        headers=received.headers,
    )
    typer.echo(f"letter    {letter.id} ({letter.state.value})")
    typer.echo(f"died      {time_text(letter.died_ms)}, after {letter.attempts} attempts")
    typer.echo(f"origin    {origin.topic}-{origin.partition} @{origin.offset} {time_text(origin.timestamp_ms)}")
    typer.echo(f"error     {readable(letter.error.encode())}")
    typer.echo(f"key       {readable(received.key, absent='<null>')}")
    typer.echo(f"headers   {headers_text(record)}")
    typer.echo(f"value     {readable(received.value, absent='<null>')}")
