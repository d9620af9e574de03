"""What `penstock serve` prints when it is ready: for people, and for the supervisor that started it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.options import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from penstock.cli.serve.child import Child


def welcome(kafka: str, http: str, data: str, database: str | None = None) -> str:
    """Where the broker listens, where it keeps its data, and what to try first."""
    at = reached_at(kafka)
    return f"""\
Penstock is ready.
  Kafka clients   {kafka}
  health, metrics http://{http}
{stores(data, database)}

{what_to_try()}
  penstock topic create orders --partitions 3{at}
  penstock send orders "hello"{at}
  penstock tail orders --follow{at}
or with any Kafka client, such as:
  kcat -b {kafka} -t orders -C
Press Ctrl-C to stop the broker."""


def welcome_to_several(brokers: Sequence[Child], data: str, database: str | None = None) -> str:
    """The same for several brokers under one supervisor."""
    kafka = [addresses(broker)[0] for broker in brokers]
    at = reached_at(kafka[0])
    return f"""\
Penstock is ready: {len(brokers)} brokers.
{table(brokers)}
  Kafka clients   {",".join(kafka)}
{stores(data, database)}

{what_to_try()}
  penstock broker list{at}
  penstock topic create orders --partitions {2 * len(brokers)}{at}
  penstock send orders "hello"{at}
  penstock tail orders --follow{at}
or with any Kafka client, such as:
  kcat -b {kafka[0]} -t orders -C
Press Ctrl-C to stop the brokers one after another, and again to kill them."""


def announcement(kafka: str, http: str) -> str:
    """What a broker prints for its supervisor when it is ready."""
    return json.dumps({"kafka": kafka, "http": http})


def addresses(child: Child) -> tuple[str, str]:
    """The addresses of a broker that is ready: for Kafka clients, and HTTP."""
    said = json.loads(child.serving.result())
    return said["kafka"], said["http"]


def stores(data: str, database: str | None) -> str:
    """Where data is kept."""
    folder = f"  data            {data}"
    return folder if database is None else f"{folder}\n  database        {database}"


def reached_at(kafka: str) -> str:
    """The option by which `penstock` commands reach a broker."""
    return "" if kafka == DEFAULT_BOOTSTRAP else f" -b {kafka}"


def what_to_try() -> str:
    """The heading of the commands to try, and how to activate the environment if `penstock` is not on the PATH."""
    heading = "Try in another terminal:"
    activate = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("penstock") is not None or not activate.exists():
        return heading
    here = Path.cwd()
    return f"{heading}\n  source {activate.relative_to(here) if activate.is_relative_to(here) else activate}"


def table(brokers: Sequence[Child]) -> str:
    """The addresses of the brokers, one line each."""
    rows = [(broker.name, *addresses(broker), f"pid {broker.pid}") for broker in brokers]
    kafka_width, http_width = (max(len(row[column]) for row in rows) for column in (1, 2))
    return "\n".join(
        f"  {name:<16}{kafka:<{kafka_width}}   http://{http:<{http_width}}   {pid}" for name, kafka, http, pid in rows
    )
