"""`penstock serve`: settings from file, environment and flags, then the broker until it is told to stop.

With `--brokers` this process is the supervisor of several, each of which is a `penstock serve` of its own.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from penstock import logs
from penstock.cli.output import pairs
from penstock.cli.siblings import Given, announcement, children, siblings
from penstock.cli.supervisor import Pauses, supervise
from penstock.cli.welcome import welcome, welcome_to_several
from penstock.config.loader import Loaded, load


def serve(
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Folder that holds everything.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where Kafka clients are served.")] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where health and metrics are served.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with settings.")] = None,
    id: Annotated[str | None, typer.Option(metavar="N", help="Number of this broker.")] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(metavar="zk://HOST:PORT/PATH", help="ZooKeeper of the cluster that this broker is part of."),
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Brokers of this host, under one supervisor: numbers and ports count up from --id, --listen and "
            "--http, and each has a folder broker-ID in --data.",
        ),
    ] = 1,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text or json.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting of `penstock config`; repeatable."),
    ] = None,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Settings come from --config, then PENSTOCK_<SECTION>_<KEY> variables, then these options.
    """
    named = {
        "broker.data": data,
        "broker.listen": listen,
        "broker.http": http,
        "broker.id": id,
        "cluster.coordinator": coordinator,
        "logging.level": log_level,
        "logging.format": log_format,
    }
    flags = {key: value for key, value in named.items() if value is not None}
    for key, value in pairs(set_ or (), "--set").items():
        if key in flags:
            raise typer.BadParameter(f"{key} is also given by its own option", param_hint="--set")
        flags[key] = value
    loaded = load(config, os.environ, flags)
    settings = loaded.config
    name = f"broker-{settings.broker.id}" if supervised else None
    logs.configure(settings.logging.level, settings.logging.format, process=name)
    if brokers > 1:
        raise typer.Exit(_serve_several(loaded, Given(config, flags), brokers))

    from penstock.broker.server import serve as run

    def on_ready(kafka: str, http: str) -> None:
        typer.echo(announcement(kafka, http) if supervised else welcome(kafka, http, str(settings.broker.data)))

    raise typer.Exit(run(loaded, on_ready))


def _serve_several(loaded: Loaded, given: Given, count: int) -> int:
    brokers = children(given, siblings(loaded, count, socket.gethostname()))
    data = str(loaded.config.broker.data)
    return supervise([brokers], Pauses(), lambda: typer.echo(welcome_to_several(brokers, data)))
