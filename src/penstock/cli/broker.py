"""`penstock broker`: list, describe and drain the brokers of a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import cluster_of
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import show_json, show_table

if TYPE_CHECKING:
    from penstock.admin import BrokerDescription, Results

app = typer.Typer(no_args_is_help=True, help="List, describe and drain the brokers of a cluster.")

Number = Annotated[int, typer.Argument(metavar="ID", min=0, help="Broker id.")]

_POLL_S = 1.0


@app.command("list")
def list_(context: typer.Context, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """List brokers, including those that are away but still have replicas.

    A silent broker does not answer, but its lease has not expired yet.
    """
    brokers = cluster_of(context, bootstrap).brokers.list()
    if json:
        show_json([_summary(broker) for broker in brokers])
        return
    headings = ("id", "state", "address", "rack", "controller", "leaders", "replicas")
    rows = [
        (
            broker.id,
            broker.state.value,
            broker.address or "",
            broker.rack or "",
            "yes" if broker.is_controller else "",
            broker.leader_count,
            len(broker.replicas),
        )
        for broker in brokers
    ]
    show_table(headings, rows, right=("id", "leaders", "replicas"))


@app.command()
def describe(context: typer.Context, id: Number, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Show a broker and its partitions."""
    broker = cluster_of(context, bootstrap).brokers.describe([id])[id]
    if json:
        partitions = [
            {
                "topic": each.topic,
                "partition": each.partition,
                "leads": each.is_leader,
                "in_sync": each.is_in_sync,
            }
            for each in broker.replicas
        ]
        show_json(_summary(broker) | {"partitions": partitions})
        return
    where = f" at {broker.address}" if broker.address else ""
    rack = f" in rack {broker.rack}" if broker.rack else ""
    typer.echo(f"broker {broker.id}{where}{rack}: {broker.state.value}{', the controller' * broker.is_controller}")
    if not broker.replicas:
        typer.echo("it has no partitions")
        return
    rows = [
        (each.topic, each.partition, "leader" if each.is_leader else "follower", "yes" if each.is_in_sync else "no")
        for each in broker.replicas
    ]
    show_table(("topic", "partition", "role", "in sync"), rows, right=("partition",))


@app.command()
def drain(
    context: typer.Context,
    id: Number,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the broker is empty.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Move all replicas off a broker, and place no new ones on it."""
    cluster = cluster_of(context, bootstrap)
    left = len(_changed(cluster.brokers.drain([id]), id).replicas)
    while wait and left:
        time.sleep(_POLL_S)
        left = len(cluster.brokers.describe([id])[id].replicas)
    if json:
        show_json({"id": id, "draining": True, "replicas": left})
    elif left:
        typer.echo(f"moving {_replicas(left)} off broker {id}; see: penstock broker describe {id}")
    else:
        typer.echo(f"broker {id} is empty")


@app.command()
def undrain(context: typer.Context, id: Number, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Allow replicas on a drained broker again."""
    broker = _changed(cluster_of(context, bootstrap).brokers.undrain([id]), id)
    if json:
        show_json({"id": id, "draining": False, "replicas": len(broker.replicas)})
    else:
        typer.echo(f"broker {id} takes replicas again")


def _changed(done: Results[int, BrokerDescription], id: int) -> BrokerDescription:
    """The broker as it was before it was changed; those that are not there say so in their error."""
    from penstock.admin import AdminError

    try:
        return done[id]
    except AdminError as error:
        raise CommandError(f"broker {id} was not changed: {error.message}") from None


def _summary(broker: BrokerDescription) -> dict[str, object]:
    return {
        "id": broker.id,
        "state": broker.state.value,
        "address": broker.address,
        "rack": broker.rack,
        "controller": broker.is_controller,
        "leaders": broker.leader_count,
        "replicas": len(broker.replicas),
    }


def _replicas(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"
