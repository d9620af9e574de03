"""`penstock timer`: messages that wait under a name."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.client import metadata, producer, reason_of, require_listener, saying, topic_of
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import show_json
from penstock.delay.wishes import CANCEL

app = typer.Typer(no_args_is_help=True, help="Messages that wait for their time under a name.")

_PATIENCE_S = 30.0


@app.callback()
def _timer() -> None:
    """Messages that wait for their time under a name."""


@app.command()
def cancel(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Topic that they wait in.")],
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
