"""How commands reach brokers: the admin API, and confluent-kafka's clients for records.

Both are imported inside the functions: a command that needs no broker does not pay for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.failure import CommandError
from penstock.cli.options import DEFAULT_BOOTSTRAP, bootstrap_of
from penstock.config.address import parse_public_address

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer

    from penstock.admin import Cluster

TIMEOUT_S = 5.0
_CLIENT_ID = "penstock-cli"


def cluster_of(context: typer.Context, given: str | None, *, timeout_s: float = TIMEOUT_S) -> Cluster:
    """The cluster that a command is for, once something accepts connections there."""
    return cluster_at(bootstrap_of(context, given), command_config(context), timeout_s=timeout_s)


def command_config(context: typer.Context) -> dict[str, str]:
    """The librdkafka settings of --command-config: how all commands connect."""
    file: str | None = context.find_root().params.get("command_config")
    return {} if file is None else read_settings(Path(file), "--command-config")


def read_settings(file: Path, option: str) -> dict[str, str]:
    """librdkafka settings, one NAME=VALUE per line."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{option} {file}: cannot be read: {error}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise CommandError(f"{option} {file}: line {number} is not NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def cluster_at(bootstrap: str, settings: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> Cluster:
    """The same by address."""
    from penstock.admin import Cluster, UnreachableError

    for server in bootstrap.split(","):
        try:
            parse_public_address(server)
        except ValueError as error:
            raise CommandError(f"--bootstrap {server!r}: expected {error}") from None
    cluster = Cluster(bootstrap, timeout_s=timeout_s, client_id=_CLIENT_ID, settings=settings)
    try:
        cluster.require_listener()
    except UnreachableError as error:
        raise with_start_hint(bootstrap, str(error)) from None
    return cluster


def require_listener(bootstrap: str) -> None:
    """Fails with the reason and a hint if nothing accepts connections at any of the addresses."""
    cluster_at(bootstrap, {})


def with_start_hint(bootstrap: str, problem: str) -> CommandError:
    """A broker that cannot be reached may not have been started."""
    listen = "" if bootstrap == DEFAULT_BOOTSTRAP else f" --listen {bootstrap.split(',')[0]}"
    return CommandError(f"{problem}; start one with: penstock serve{listen}")


def client_settings(bootstrap: str) -> dict[str, Any]:
    """What every producer and consumer is given: where to connect, and not to write to the terminal."""
    return {"bootstrap.servers": bootstrap, "client.id": _CLIENT_ID, "log_level": 0, "error_cb": _ignore}


def _ignore(error: KafkaError) -> None:
    """The library retries connection trouble; what matters fails the call that needed an answer."""


def producer(bootstrap: str, settings: Mapping[str, str], **more: Any) -> Producer:
    from confluent_kafka import Producer

    return Producer(client_settings(bootstrap) | dict(settings) | more)


def consumer(bootstrap: str, settings: Mapping[str, str], **more: Any) -> Consumer:
    """A consumer for `assign`: the library demands a group name, but nothing joins or commits."""
    from confluent_kafka import Consumer

    unused_group = {
        "group.id": _CLIENT_ID,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }
    return Consumer(client_settings(bootstrap) | unused_group | dict(settings) | more)


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Puts what was not done before the reason of an admin error: `topic orders was not changed: ...`."""
    from penstock.admin import AdminError

    try:
        yield
    except AdminError as error:
        raise CommandError(f"{what}: {error.message.rstrip('.')}") from None
