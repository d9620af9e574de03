"""`penstock dbnode`: the databases that topics in SQL storage are spread over."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import cluster_of, failing_as
from penstock.cli.database_urls import Primary, PrimaryFile, ReplicaFiles, Replicas, database_urls
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import show_json, show_table
from penstock.cli.prompts import confirm

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.admin import DatabaseGroupDescription, DatabaseServerDescription

app = typer.Typer(
    no_args_is_help=True,
    help="Add, list, test, drain and remove database groups, each a primary database and its replicas.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the database group.")]

_POLL_S = 1.0
_CONNECTING_S = 60.0
"""The broker connects to all servers before it answers, and waits for replicas."""
_UP = "up"


@app.command()
def add(
    context: typer.Context,
    name: Name,
    primary: Primary = None,
    primary_file: PrimaryFile = None,
    replica: Replicas = None,
    replica_file: ReplicaFiles = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Add a database group: a primary, and its replicas if it has some.

    The broker connects to all servers, checks them and makes its tables in the primary. New partitions of topics in SQL
    storage are then placed in the group, too. PENSTOCK_DATABASE_SERVERS can hold the URLs instead of the options: the
    primary's, then those of replicas, separated by spaces.
    """
    urls = database_urls(primary, primary_file, replica, replica_file)
    cluster = cluster_of(context, bootstrap, timeout_s=_CONNECTING_S)
    with failing_as(f"database group {name} was not added"):
        cluster.databases.add(name, urls)
    _show_servers(cluster.databases.describe([name])[name], "added", json)


@app.command()
def alter(
    context: typer.Context,
    name: Name,
    primary: Primary = None,
    primary_file: PrimaryFile = None,
    replica: Replicas = None,
    replica_file: ReplicaFiles = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Give a database group other replicas, or other users and passwords.

    Name all its servers, as for `add`. The primary stays the same: `promote` makes another server the primary.
    """
    urls = database_urls(primary, primary_file, replica, replica_file)
    cluster = cluster_of(context, bootstrap, timeout_s=_CONNECTING_S)
    with failing_as(f"database group {name} was not changed"):
        cluster.databases.describe([name])[name]
        cluster.databases.set_servers(name, urls)
    _show_servers(cluster.databases.describe([name])[name], "changed", json)


@app.command("list")
def list_(context: typer.Context, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """List database groups and their servers, as the broker sees them now."""
    with failing_as("database groups cannot be listed"):
        groups = cluster_of(context, bootstrap).databases.list()
    if json:
        show_json([_summary(group) for group in groups])
    elif groups:
        show_table(
            ("group", "server", "role", "state", "lag", "partitions", "draining"),
            [row for group in groups for row in _rows(group)],
            right=("lag", "partitions"),
        )
    else:
        typer.echo("no database groups: the broker has no database (sql.url)", err=True)


@app.command()
def test(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Database group; default: all.")] = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Test whether the servers of database groups are well, as the broker sees them; fails if one is not."""
    databases = cluster_of(context, bootstrap).databases
    with failing_as("database groups cannot be tested"):
        groups = databases.list() if name is None else (databases.describe([name])[name],)
    if json:
        show_json([_summary(group) for group in groups])
    else:
        headings = ("group", "server", "role", "state", "lag", "problem")
        rows = [
            (group.name, server.name, _role(server), _state(server), _lag(server), server.problem)
            for group in groups
            for server in group.servers
        ]
        show_table(headings, rows, right=("lag",))
    bad = [f"{server.name} of {group.name}" for group in groups for server in group.servers if server.state != _UP]
    if bad:
        raise CommandError(f"not well: {', '.join(bad)}")


@app.command()
def drain(
    context: typer.Context,
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Allow partitions in the group again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the group is empty.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Move all partitions of a database group to other groups, and place no new ones in it."""
    if undo and wait:
        raise typer.BadParameter("--undo and --wait cannot be combined")
    databases = cluster_of(context, bootstrap).databases
    with failing_as(f"database group {name} was not changed"):
        (databases.undrain if undo else databases.drain)([name])[name]
    group = databases.describe([name])[name]
    if wait:
        with _progress(group.partitions) as tell:
            while group.partitions and group.is_draining:
                time.sleep(_POLL_S)
                group = databases.describe([name])[name]
                tell(group.partitions)
    if json:
        show_json(_summary(group))
    elif undo:
        typer.echo(f"database group {name} takes partitions again")
    elif group.partitions:
        typer.echo(f"moving {_partitions(group.partitions)} off database group {name}; see: penstock dbnode list")
    else:
        typer.echo(f"database group {name} is empty; remove it with: penstock dbnode remove {name}")
    if wait and not group.is_draining:
        raise CommandError(
            f"database group {name} is not drained any more; {_partitions(group.partitions)} are left in it"
        )


@app.command()
def promote(
    context: typer.Context,
    name: Name,
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The server that takes writes now.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Make another server the primary of its database group.

    Brokers do this by themselves when the primary is down and one replica takes writes. Make the server writable first,
    and make sure that the former primary takes no more writes.
    """
    databases = cluster_of(context, bootstrap, timeout_s=_CONNECTING_S).databases
    with failing_as(f"database group {name} was not changed"):
        before = databases.describe([name])[name]
        if not yes and before.primary.name != server:
            confirm(
                f"Make {server} the primary of {name}? What {before.primary.name} has not replicated to it is lost."
            )
        databases.promote(name, server)
    after = databases.describe([name])[name]
    if json:
        show_json(_summary(after))
    else:
        typer.echo(f"{after.primary.name} is the primary of database group {name}")


@app.command()
def remove(context: typer.Context, name: Name, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Remove a database group that has no partitions; its databases are left as they are."""
    with failing_as(f"database group {name} was not removed"):
        cluster_of(context, bootstrap).databases.remove([name])[name]
    if json:
        show_json({"removed": name})
    else:
        typer.echo(f"removed database group {name}")


@app.command()
def key() -> None:
    """Print a new key for the file sql.key_file, which all brokers share.

    Brokers encrypt the passwords of database groups with it. Keep a copy: without it you have to enter all passwords
    again.
    """
    from penstock.sql.passwords import new_key

    typer.echo(new_key())


def _show_servers(group: DatabaseGroupDescription, verb: str, json: bool) -> None:
    if json:
        show_json(_summary(group))
        return
    replicas = [server.name for server in group.servers if not server.is_primary]
    others = f", replicas {', '.join(replicas)}" if replicas else ", no replicas"
    typer.echo(f"{verb} database group {group.name}: primary {group.primary.name}{others}")


def _rows(group: DatabaseGroupDescription) -> Iterable[tuple[object, ...]]:
    for server in group.servers:
        of_group = (group.partitions, "yes" if group.is_draining else "") if server.is_primary else ("", "")
        yield (group.name, server.name, _role(server), _state(server), _lag(server), *of_group)


def _summary(group: DatabaseGroupDescription) -> dict[str, Any]:
    return {
        "group": group.name,
        "draining": group.is_draining,
        "generation": group.generation,
        "partitions": group.partitions,
        "leaving": group.leaving,
        "arriving": group.arriving,
        "servers": [
            {
                "server": server.name,
                "address": server.address,
                "role": _role(server),
                "state": _state(server),
                "lag_ms": server.lag_ms,
                "problem": server.problem or None,
            }
            for server in group.servers
        ],
    }


def _role(server: DatabaseServerDescription) -> str:
    return "primary" if server.is_primary else "replica"


def _state(server: DatabaseServerDescription) -> str:
    return server.state or "unknown"


def _lag(server: DatabaseServerDescription) -> str:
    return "" if server.lag_ms is None else f"{server.lag_ms / 1000:.1f} s"


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere; the caller passes how many partitions are left."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task("partitions", total=total)
        yield lambda left: bar.update(line, completed=total - left)
