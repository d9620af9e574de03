"""`penstock timer`: list, show and cancel messages that wait for delayed delivery."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import cluster_of
from penstock.cli.failure import CommandError
from penstock.cli.formats import exact, readable, time_text
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import show_json, show_table
from penstock.clock import SystemClock
from penstock.durations import parse_duration

if TYPE_CHECKING:
    from penstock.admin import WaitingMessage

_HELP = "List, show and cancel messages that wait for delayed delivery."
app = typer.Typer(no_args_is_help=True, help=_HELP)

_ALLOWED = "a time such as 2026-03-01T12:00:00Z, milliseconds since 1970, or a delay from now such as 30m"
_MAX_LIMIT = 100_000
_VALUE_CHARACTERS = 60
_TIMEOUT_S = 30.0
"""Searching a large index of timers takes a broker longer than other requests."""

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic in which the messages wait.")]
InPartition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")]


@app.callback(help=_HELP)
def _timer() -> None:
    pass


@app.command("list")
def list_(
    context: typer.Context,
    topic: Topic,
    partition: InPartition = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"Only messages due at or after: {_ALLOWED}.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only messages due before.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=_MAX_LIMIT, help="Maximum number of messages, earliest first.")
    ] = 100,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """List waiting messages by due time."""
    now_ms = SystemClock().now_ms()
    from_ms = 0 if from_ is None else _time_ms(from_, now_ms, "--from")
    until_ms = None if until is None else _time_ms(until, now_ms, "--until")
    timers = cluster_of(context, bootstrap, timeout_s=_TIMEOUT_S).timers
    shown = timers.list(topic, due_from_ms=from_ms, due_until_ms=until_ms, partition=partition, limit=limit).items
    if json:
        show_json([_as_json(message) for message in shown])
    elif shown:
        headings = ("due", "partition", "timer id", "schedule", "key", "value")
        show_table(headings, [_row(message) for message in shown], right=("partition",))
    else:
        typer.echo(f"no message waits in {topic}", err=True)


@app.command()
def show(
    context: typer.Context,
    topic: Topic,
    name: Annotated[str, typer.Argument(metavar="TIMER-ID", help="Timer id of the message.")],
    partition: InPartition = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Show a waiting message in full, with its due time."""
    timers = cluster_of(context, bootstrap, timeout_s=_TIMEOUT_S).timers
    found = timers.find(topic, [name], partition=partition)[name]
    if json:
        show_json([_as_json(message) for message in found])
        return
    for message in found:
        show_table(("field", "value"), _lines(message))


@app.command()
def cancel(
    context: typer.Context,
    topic: Topic,
    names: Annotated[list[str], typer.Argument(metavar="TIMER-ID...", help="Timer ids of the messages.")],
    partition: InPartition = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Cancel waiting messages; fails if no message waits under one of the timer ids."""
    from penstock.admin import RESOURCE_NOT_FOUND

    timers = cluster_of(context, bootstrap, timeout_s=_TIMEOUT_S).timers
    done = timers.cancel(topic, names, partition=partition)
    missing = [name for name, error in done.errors.items() if error.code == RESOURCE_NOT_FOUND]
    if json:
        cancelled = {name: list(partitions) for name, partitions in done.values.items()}
        show_json({"topic": topic, "cancelled": cancelled, "not_found": missing})
    else:
        for name in done.values:
            typer.echo(f"cancelled {name} in {topic}")
    for name, error in done.errors.items():
        if name not in missing:
            raise CommandError(f"timer {name} was not cancelled: {error.message}")
    if missing:
        where = topic if partition is None else f"partition {partition} of {topic}"
        raise CommandError(f"nothing to cancel: no message waits in {where} under timer id {', '.join(missing)}")


def _time_ms(text: str, now_ms: int, option: str) -> int:
    word = text.strip()
    if word.isascii() and word.isdigit():
        return int(word)
    try:
        return now_ms + parse_duration(word)
    except ValueError:
        pass
    try:
        return max(0, int(datetime.fromisoformat(word).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(f"{text!r}: expected {_ALLOWED}", param_hint=option) from None


def _text(value: str | None, absent: str = "") -> str:
    return readable(None if value is None else value.encode(), absent=absent)


def _row(message: WaitingMessage) -> tuple[object, ...]:
    value = readable(message.value, absent="<null>")
    if len(value) > _VALUE_CHARACTERS:
        value = value[: _VALUE_CHARACTERS - 1] + "…"
    return (
        time_text(message.due_ms),
        message.partition,
        _text(message.timer_id),
        _text(message.schedule),
        readable(message.key),
        value,
    )


def _lines(message: WaitingMessage) -> list[tuple[str, str]]:
    return [
        ("due", time_text(message.due_ms)),
        ("partition", str(message.partition)),
        ("timer id", _text(message.timer_id)),
        ("schedule", _text(message.schedule, absent="once")),
        ("key", readable(message.key, absent="<null>")),
        ("value", readable(message.value, absent="<null>")),
        *((f"header {readable(name.encode())}", readable(value, absent="<null>")) for name, value in message.headers),
    ]


def _as_json(message: WaitingMessage) -> dict[str, object]:
    return {
        "due": message.due_ms,
        "partition": message.partition,
        "timer_id": message.timer_id,
        "schedule": message.schedule,
        "key": exact(message.key),
        "value": exact(message.value),
        "headers": [[name, exact(value)] for name, value in message.headers],
    }
