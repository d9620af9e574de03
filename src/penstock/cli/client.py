"""How commands reach a broker: confluent-kafka, with its complaints turned into one line.

confluent-kafka is imported inside the functions: a command that needs no broker does not pay for it.
"""

from __future__ import annotations

import difflib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli.failure import CommandError
from penstock.cli.options import DEFAULT_BOOTSTRAP
from penstock.config.address import parse_public_address

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicMetadata

TIMEOUT_S = 5.0


def settings(bootstrap: str) -> dict[str, Any]:
    """What every client is given: where to connect, and to leave talking to us."""
    return {"bootstrap.servers": bootstrap, "client.id": "penstock-cli", "log_level": 0, "error_cb": ignore}


def ignore(error: KafkaError) -> None:
    """Connection trouble is retried by the library; what matters fails the call that needed it."""


def admin(bootstrap: str) -> AdminClient:
    """A client for admin calls, once something accepts connections there."""
    from confluent_kafka.admin import AdminClient

    require_listener(bootstrap)
    return AdminClient(settings(bootstrap))


def producer(bootstrap: str, **more: Any) -> Producer:
    from confluent_kafka import Producer

    return Producer(settings(bootstrap) | more)


def consumer(bootstrap: str, **more: Any) -> Consumer:
    """A consumer for `assign`: the library demands a group name, but nothing joins or commits."""
    from confluent_kafka import Consumer

    unused_group = {
        "group.id": "penstock-cli",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }
    return Consumer(settings(bootstrap) | unused_group | more)


def require_listener(bootstrap: str) -> None:
    """Fails at once, and with the reason, where the library would keep trying in silence."""
    reasons = []
    for server in bootstrap.split(","):
        try:
            address = parse_public_address(server)
        except ValueError as error:
            raise CommandError(f"--bootstrap {server!r}: allowed is {error}") from None
        try:
            with socket.create_connection(address, timeout=TIMEOUT_S):
                return
        except OSError as error:
            reasons.append(f"{server.strip()}: {error.strerror or error}")
    raise unreachable(bootstrap, "; ".join(reasons))


def unreachable(bootstrap: str, reason: str) -> CommandError:
    listen = "" if bootstrap == DEFAULT_BOOTSTRAP else f" --listen {bootstrap.split(',')[0]}"
    return CommandError(f"no broker answers ({reason}); start one with: penstock serve{listen}")


def metadata(client: AdminClient | Producer | Consumer, bootstrap: str) -> ClusterMetadata:
    """All topics. Asking for one by name could create it, where the broker creates topics on demand."""
    from confluent_kafka import KafkaException

    try:
        return client.list_topics(timeout=TIMEOUT_S)
    except KafkaException as error:
        raise CommandError(
            f"{bootstrap} takes connections but does not answer as a broker ({reason_of(error)}); "
            "a broker is started with: penstock serve"
        ) from None


def topic_of(cluster: ClusterMetadata, name: str) -> TopicMetadata:
    """One topic's partitions, or a failure that names the nearest topic."""
    found = cluster.topics.get(name)
    if found is not None:
        if found.error is None:
            return found
        raise CommandError(f"topic {name}: {found.error.str()}")
    close = difflib.get_close_matches(name, cluster.topics, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise CommandError(f"there is no topic {name}{hint}")


def reason_of(error: BaseException) -> str:
    """The words of a client error without its code numbers."""
    cause = error.args[0] if error.args else error
    text = cause.str() if hasattr(cause, "str") else str(cause)
    return " ".join(text.split()) or type(error).__name__


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Turns a client error into `what: reason`."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise CommandError(f"{what}: {reason_of(error)}") from None
    except ValueError as error:
        # The client library refuses some values itself.
        raise CommandError(f"{what}: {error}") from None
