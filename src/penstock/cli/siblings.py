"""Several brokers of one host: what each of them is told that the others are not.

Numbers and ports count up from those of the first broker, and each has a folder of its own; everything else holds for
all. Brokers of one host die together, so unless their rack was set they are in a rack of their own, which is named
after the host: the replicas of a partition then go to different hosts as far as there are any.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.cli.child import Child
from penstock.cluster.folder import is_data_folder
from penstock.config.address import Address, is_wildcard
from penstock.config.loader import DEFAULT, Loaded
from penstock.errors import ConfigError

_MAX_PORT = 65_535


class Given(NamedTuple):
    """What all brokers are told on their command line; the environment they inherit."""

    file: Path | None
    flags: Mapping[str, str]


def siblings(loaded: Loaded, count: int, host: str) -> list[dict[str, str]]:
    """The settings of each; a ConfigError if there cannot be so many."""
    first = loaded.config.broker
    if loaded.config.cluster.coordinator is None:
        raise ConfigError(
            f"{count} brokers need a ZooKeeper to be one cluster: set --coordinator zk://HOST:PORT/PATH, "
            "or start one broker without --brokers"
        )
    if is_data_folder(first.data):
        raise ConfigError(
            f"data folder {first.data} is that of one broker: move what is in it to {_folder(first.data, first.id)} "
            "if that broker shall be the first of several, or choose another --data"
        )
    if first.listen.port and first.http.port and _overlap(first.listen, first.http, count):
        raise ConfigError(
            f"broker.listen = '{first.listen}' and broker.http = '{first.http}': {count} brokers take as many ports "
            "from each on, and these overlap"
        )
    return [_sibling(loaded, number, host, count) for number in range(count)]


def children(given: Given, each: Sequence[Mapping[str, str]], logs: Path | None = None) -> list[Child]:
    """A process for each; its log goes to a file of its own in the folder `logs`, or to where ours goes."""
    return [
        Child(
            f"broker {settings['broker.id']}",
            _command(given.file, {**given.flags, **settings}),
            log=None if logs is None else logs / f"broker-{settings['broker.id']}.log",
        )
        for settings in each
    ]


def announcement(kafka: str, http: str) -> str:
    """What a broker says to its supervisor when it serves."""
    return json.dumps({"kafka": kafka, "http": http})


def addresses(child: Child) -> tuple[str, str]:
    """Where a broker that serves is found by Kafka clients, and over HTTP."""
    said = json.loads(child.serving.result())
    return said["kafka"], said["http"]


def _sibling(loaded: Loaded, number: int, host: str, count: int) -> dict[str, str]:
    first = loaded.config.broker
    id = first.id + number
    settings = {
        "broker.id": str(id),
        "broker.data": str(_folder(first.data, id)),
        "broker.listen": _counted("listen", first.listen, number, count),
        "broker.http": _counted("http", first.http, number, count),
    }
    if first.advertised is not None:
        settings["broker.advertised"] = _counted("advertised", first.advertised, number, count)
    if loaded.origins["broker.rack"] == DEFAULT:
        settings["broker.rack"] = host
    return settings


def _folder(data: Path, id: int) -> Path:
    return data / f"broker-{id}"


def _counted(name: str, first: Address, number: int, count: int) -> str:
    """Port 0 stays: each takes a free one."""
    if first.port == 0:
        return str(first)
    if first.port + count - 1 > _MAX_PORT:
        raise ConfigError(f"broker.{name} = '{first}': {count} brokers count up from it, and ports end at {_MAX_PORT}")
    return str(Address(first.host, first.port + number))


def _overlap(one: Address, other: Address, count: int) -> bool:
    shares_host = one.host == other.host or is_wildcard(one) or is_wildcard(other)
    return shares_host and abs(one.port - other.port) < count


def _command(file: Path | None, flags: Mapping[str, str]) -> list[str]:
    # -P: what lies in the working directory is not ours to import.
    command = [sys.executable, "-P", "-m", "penstock", "serve", "--supervised"]
    if file is not None:
        command += ["--config", str(file)]
    for key, value in flags.items():
        command += ["--set", f"{key}={value}"]
    return command
