"""Several brokers on one host: the settings in which they differ.

Ids and ports count up from those of the first broker, and each broker has its own data folder. Brokers on one host fail
together, so unless a rack is set they form one rack, named after the host: the replicas of a partition then go to
different hosts where possible.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from penstock.cli.serve.child import Child
from penstock.cluster.folder import is_data_folder
from penstock.config.address import Address
from penstock.config.listeners import NamedAddress, NamedAddresses, share_ports
from penstock.config.loader import DEFAULT, Loaded
from penstock.errors import ConfigError

_MAX_PORT = 65_535


class Given(NamedTuple):
    """What all brokers get on their command line; they inherit the environment."""

    file: Path | None
    flags: Mapping[str, str]


def siblings(loaded: Loaded, count: int, host: str) -> list[dict[str, str]]:
    """The settings of each broker; a ConfigError if the host cannot run that many."""
    first = loaded.config.broker
    if not loaded.config.in_cluster:
        raise ConfigError(
            f"{count} brokers need a ZooKeeper or a database to form a cluster: set --coordinator zk://HOST:PORT/PATH "
            "or --sql URL, or start one broker without --brokers"
        )
    if is_data_folder(first.data):
        raise ConfigError(
            f"data folder {first.data} belongs to a single broker: move its content to {_folder(first.data, first.id)} "
            "to make that broker the first of several, or choose another --data"
        )
    addresses = [*(("broker.listen", each.address) for each in first.listen), ("broker.http", first.http)]
    for (key, one), (other_key, other) in combinations(addresses, 2):
        if one.port and other.port and share_ports(one, other, count):
            raise ConfigError(
                f"{key} = '{one}' and {other_key} = '{other}': the port ranges of {count} brokers overlap"
            )
    return [_sibling(loaded, number, host, count) for number in range(count)]


def children(given: Given, each: Sequence[Mapping[str, str]], logs: Path | None = None) -> list[Child]:
    """A process for each broker; it logs to a file in the folder `logs`, or to our standard error."""
    return [
        Child(
            f"broker {settings['broker.id']}",
            _command(given.file, {**given.flags, **settings}),
            log=None if logs is None else logs / f"broker-{settings['broker.id']}.log",
        )
        for settings in each
    ]


def _sibling(loaded: Loaded, number: int, host: str, count: int) -> dict[str, str]:
    first = loaded.config.broker
    id = first.id + number
    settings = {
        "broker.id": str(id),
        "broker.data": str(_folder(first.data, id)),
        "broker.listen": str(_counted_listeners("listen", first.listen, number, count)),
        "broker.http": str(_counted("http", first.http, number, count)),
    }
    if first.advertised is not None:
        settings["broker.advertised"] = str(_counted_listeners("advertised", first.advertised, number, count))
    if loaded.origins["broker.rack"] == DEFAULT:
        settings["broker.rack"] = host
    return settings


def _folder(data: Path, id: int) -> Path:
    return data / f"broker-{id}"


def _counted_listeners(name: str, first: NamedAddresses, number: int, count: int) -> NamedAddresses:
    return NamedAddresses(NamedAddress(each.name, _counted(name, each.address, number, count)) for each in first)


def _counted(name: str, first: Address, number: int, count: int) -> Address:
    """Port 0 stays: each takes a free one."""
    if first.port == 0:
        return first
    if first.port + count - 1 > _MAX_PORT:
        raise ConfigError(
            f"broker.{name} = '{first}': {count} brokers count up from it, past the last port {_MAX_PORT}"
        )
    return Address(first.host, first.port + number)


def _command(file: Path | None, flags: Mapping[str, str]) -> list[str]:
    # -P: what lies in the working directory is not ours to import.
    command = [sys.executable, "-P", "-m", "penstock", "serve", "--supervised"]
    if file is not None:
        command += ["--config", str(file)]
    for key, value in flags.items():
        command += ["--set", f"{key}={value}"]
    return command
