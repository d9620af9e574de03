"""`penstock timer`: messages that wait for their time; listed, shown and cancelled as any client could."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.client import metadata, producer, reason_of, require_listener, saying, topic_of
from penstock.cli.failure import CommandError
from penstock.cli.formats import exact, readable, time_text
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import show_json, show_table
from penstock.clock import SystemClock
from penstock.delay.wishes import CANCEL
from penstock.durations import parse_duration

if TYPE_CHECKING:
    from penstock.sdk.waiting import WaitingMessage, WaitingRoom

app = typer.Typer(no_args_is_help=True, help="Messages that wait for their time.")

_PATIENCE_S = 30.0
_ALLOWED = "a time such as 2026-03-01T12:00:00Z, milliseconds since 1970, or a while from now such as 30m"
_MAX_LIMIT = 100_000
_VALUE_CHARACTERS = 60

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic that they wait in.")]
InPartition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Only what waits in this one; else in all.")
]


@app.callback()
def _timer() -> None:
    """Messages that wait for their time."""


@app.command("list")
def list_(
    context: typer.Context,
    topic: Topic,
    partition: InPartition = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"Only what is due then or later: {_ALLOWED}.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only what is due before.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=_MAX_LIMIT, help="So many, the first due.")] = 100,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """List messages that wait, by due time; what is delivered or cancelled is not among them."""
    now_ms = SystemClock().now_ms()
    from_ms = 0 if from_ is None else _time_ms(from_, now_ms, "--from")
    until_ms = None if until is None else _time_ms(until, now_ms, "--until")
    with _waiting_room(context, bootstrap, topic, partition) as room:
        shown = room.due_in(from_ms, until_ms, limit)
    if json:
        show_json([_as_json(message) for message in shown])
    elif shown:
        headings = ("due", "partition", "timer id", "schedule", "key", "value")
        show_table(headings, [_row(message) for message in shown], right=("partition",))
    else:
        typer.echo(f"nothing waits in {topic}", err=True)


@app.command()
def show(
    context: typer.Context,
    topic: Topic,
    name: Annotated[str, typer.Argument(metavar="TIMER-ID", help="Name of the message.")],
    partition: InPartition = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Show the message that waits under a name: all of it, and when it is due."""
    with _waiting_room(context, bootstrap, topic, partition) as room:
        found = room.named(name)
    if not found:
        raise CommandError(f"nothing waits in {topic} under the name {name}")
    if json:
        show_json([_as_json(message) for message in found])
        return
    for message in found:
        show_table(("what", "value"), _lines(message))


@app.command()
def cancel(
    context: typer.Context,
    topic: Topic,
    names: Annotated[list[str], typer.Argument(metavar="TIMER-ID...", help="Names of the messages.")],
    partition: Annotated[int | None, typer.Option(help="Partition that they wait in; not given, all are told.")] = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Cancel messages before they are delivered; one that waits nowhere is fine."""
    address = bootstrap_of(context, bootstrap)
    require_listener(address)
    client = producer(address, **{"enable.idempotence": True})
    known = topic_of(metadata(client, address), topic).partitions
    if partition is not None and partition not in known:
        raise CommandError(f"topic {topic} has no partition {partition}")
    chosen = sorted(known) if partition is None else [partition]
    failed: list[str] = []

    def report(error: object, _: object) -> None:
        if error is not None:
            failed.append(reason_of(Exception(error)))

    for each in chosen:
        for name in names:
            with saying(f"timer {name} was not cancelled"):
                client.produce(topic, None, partition=each, headers=[(CANCEL.decode(), name)], on_delivery=report)
    left = client.flush(_PATIENCE_S)
    if failed or left:
        raise CommandError(f"not everything was cancelled: {failed[0] if failed else 'the broker does not answer'}")
    if json:
        show_json({"topic": topic, "partitions": chosen, "cancelled": names})
    else:
        for name in names:
            typer.echo(f"cancelled {name} in {topic}")


def _waiting_room(context: typer.Context, bootstrap: str | None, topic: str, partition: int | None) -> WaitingRoom:
    from penstock.sdk.access import Access
    from penstock.sdk.waiting import WaitingRoom

    address = bootstrap_of(context, bootstrap)
    require_listener(address)
    return WaitingRoom(Access(address, client_id="penstock-cli"), topic, partition)


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
        raise typer.BadParameter(f"{text!r}: allowed is {_ALLOWED}", param_hint=option) from None


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
