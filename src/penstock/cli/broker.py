"""`penstock broker`: who is in the cluster and what they hold, and emptying one; through Kafka's admin calls."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock.cli.client import TIMEOUT_S, admin, metadata, saying
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import show_json, show_table
from penstock.config.draining import DRAINING

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, BrokerMetadata, ClusterMetadata, ConfigEntry

app = typer.Typer(no_args_is_help=True, help="List, describe and empty the brokers of a cluster.")

Number = Annotated[int, typer.Argument(metavar="ID", min=0, help="Number of the broker.")]

_LOOK_S = 1.0


class _Held(NamedTuple):
    """One replica on a broker."""

    topic: str
    partition: int
    leads: bool
    in_sync: bool


class _Broker(NamedTuple):
    """What a broker is and holds; one that is away is known by its replicas alone."""

    id: int
    address: str | None
    rack: str | None
    is_controller: bool
    is_draining: bool
    is_silent: bool
    held: tuple[_Held, ...]

    @property
    def state(self) -> str:
        if self.address is None:
            return "away"
        if self.is_silent:
            return "silent"
        return "draining" if self.is_draining else "alive"

    @property
    def leaders(self) -> int:
        return sum(each.leads for each in self.held)


@app.command("list")
def list_(context: typer.Context, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """List the brokers, and those that are away but still have replicas.

    One that is silent does not answer, and its lease has not ended yet.
    """
    at = bootstrap_of(context, bootstrap)
    brokers = _brokers(admin(at), at)
    if json:
        show_json([_summary(broker) for broker in brokers])
        return
    headings = ("id", "state", "address", "rack", "controller", "leaders", "replicas")
    rows = [
        (
            broker.id,
            broker.state,
            broker.address or "",
            broker.rack or "",
            "yes" if broker.is_controller else "",
            broker.leaders,
            len(broker.held),
        )
        for broker in brokers
    ]
    show_table(headings, rows, right=("id", "leaders", "replicas"))


@app.command()
def describe(context: typer.Context, id: Number, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Show one broker and the partitions that it has."""
    at = bootstrap_of(context, bootstrap)
    broker = _one(_brokers(admin(at), at), id)
    if json:
        show_json(_summary(broker) | {"partitions": [each._asdict() for each in broker.held]})
        return
    where = f" at {broker.address}" if broker.address else ""
    rack = f" in rack {broker.rack}" if broker.rack else ""
    typer.echo(f"broker {broker.id}{where}{rack}: {broker.state}{', the controller' * broker.is_controller}")
    if not broker.held:
        typer.echo("it has no partitions")
        return
    rows = [
        (each.topic, each.partition, "leader" if each.leads else "follower", "yes" if each.in_sync else "no")
        for each in broker.held
    ]
    show_table(("topic", "partition", "role", "in sync"), rows, right=("partition",))


@app.command()
def drain(
    context: typer.Context,
    id: Number,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the broker is empty.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Move everything off a broker, and place nothing new on it."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

    at = bootstrap_of(context, bootstrap)
    client = admin(at)
    before = _one(_brokers(client, at), id)
    _alter(client, before, ConfigEntry(DRAINING.name, "true", incremental_operation=AlterConfigOpType.SET))
    left = len(before.held)
    while wait and left:
        time.sleep(_LOOK_S)
        left = len(_one(_brokers(client, at), id).held)
    if json:
        show_json({"id": id, "draining": True, "replicas": left})
    elif left:
        typer.echo(f"broker {id} is being emptied of {_replicas(left)}; see penstock broker describe {id}")
    else:
        typer.echo(f"broker {id} is empty")


@app.command()
def undrain(context: typer.Context, id: Number, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Let a broker have partitions again."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

    at = bootstrap_of(context, bootstrap)
    client = admin(at)
    broker = _one(_brokers(client, at), id)
    _alter(client, broker, ConfigEntry(DRAINING.name, None, incremental_operation=AlterConfigOpType.DELETE))
    if json:
        show_json({"id": id, "draining": False, "replicas": len(broker.held)})
    else:
        typer.echo(f"broker {id} takes partitions again")


def _brokers(client: AdminClient, at: str) -> list[_Broker]:
    """Those that are there, and those that partitions name."""
    cluster = metadata(client, at)
    racks = _racks(client, cluster)
    held = _held(cluster)
    draining = _draining(client, cluster.brokers.values())
    found = []
    for id in sorted({*cluster.brokers, *held}):
        there = cluster.brokers.get(id)
        found.append(
            _Broker(
                id=id,
                address=None if there is None else f"{there.host}:{there.port}",
                rack=racks.get(id),
                is_controller=id == cluster.controller_id,
                is_draining=draining.get(id, False),
                is_silent=there is not None and id not in draining,
                held=tuple(held.get(id, ())),
            )
        )
    return found


def _racks(client: AdminClient, cluster: ClusterMetadata) -> dict[int, str | None]:
    """The library asks the controller for them: they are not known while that one is silent."""
    controller = cluster.brokers.get(cluster.controller_id)
    if controller is not None and _listens(controller):
        with saying("the cluster cannot be described"), _silence():
            described = client.describe_cluster(request_timeout=TIMEOUT_S).result()
            return {node.id: node.rack for node in described.nodes}
    return {}


def _held(cluster: ClusterMetadata) -> dict[int, list[_Held]]:
    held: dict[int, list[_Held]] = {}
    for name, topic in sorted(cluster.topics.items()):
        for number, partition in sorted(topic.partitions.items()):
            for id in partition.replicas:
                replica = _Held(name, number, partition.leader == id, id in partition.isrs)
                held.setdefault(id, []).append(replica)
    return held


def _draining(client: AdminClient, brokers: Iterable[BrokerMetadata]) -> dict[int, bool]:
    """Each broker is asked for its own settings, all at once; those that do not answer are not in it."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    asked = {}
    for broker in brokers:
        if _listens(broker):
            resource = ConfigResource(ResourceType.BROKER, str(broker.id))
            (asked[broker.id],) = client.describe_configs([resource], request_timeout=TIMEOUT_S).values()
    found = {}
    for id, answer in asked.items():
        with saying(f"the settings of broker {id} cannot be read"), _silence():
            entry = answer.result().get(DRAINING.name)
            found[id] = entry is not None and entry.value == "true"
    return found


def _listens(broker: BrokerMetadata) -> bool:
    """Known at once, where the library would try until its time is over."""
    try:
        with socket.create_connection((str(broker.host), broker.port), timeout=TIMEOUT_S):
            return True
    except OSError:
        return False


@contextmanager
def _silence() -> Iterator[None]:
    """Whoever is asked inside need not answer."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        yield
    except KafkaException as error:
        if error.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            raise


def _one(brokers: list[_Broker], id: int) -> _Broker:
    for broker in brokers:
        if broker.id == id:
            return broker
    known = ", ".join(str(broker.id) for broker in brokers)
    raise CommandError(f"there is no broker {id}; there are {known}")


def _alter(client: AdminClient, broker: _Broker, change: ConfigEntry) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    if broker.address is None:
        raise CommandError(f"broker {broker.id} is away: what it has is placed elsewhere after cluster.heal_after_ms")
    resource = ConfigResource(ResourceType.BROKER, str(broker.id), incremental_configs=[change])
    (answer,) = client.incremental_alter_configs([resource], request_timeout=TIMEOUT_S).values()
    with saying(f"broker {broker.id} was not changed"):
        answer.result()


def _summary(broker: _Broker) -> dict[str, object]:
    return {
        "id": broker.id,
        "state": broker.state,
        "address": broker.address,
        "rack": broker.rack,
        "controller": broker.is_controller,
        "leaders": broker.leaders,
        "replicas": len(broker.held),
    }


def _replicas(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"
