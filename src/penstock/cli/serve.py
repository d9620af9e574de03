"""`penstock serve`: settings from file, environment and flags, then the broker until it is told to stop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock import logs
from penstock.cli.output import pairs
from penstock.cli.welcome import welcome
from penstock.config.loader import load


def serve(
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Folder that holds everything.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where Kafka clients are served.")] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where health and metrics are served.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with settings.")] = None,
    id: Annotated[str | None, typer.Option(metavar="N", help="Number of this broker.")] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text or json.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting of `penstock config`; repeatable."),
    ] = None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Settings come from --config, then PENSTOCK_<SECTION>_<KEY> variables, then these options.
    """
    named = {
        "broker.data": data,
        "broker.listen": listen,
        "broker.http": http,
        "broker.id": id,
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
    logs.configure(settings.logging.level, settings.logging.format)

    from penstock.broker.server import serve as run

    def on_ready(kafka: str, http: str) -> None:
        typer.echo(welcome(kafka, http, str(settings.broker.data)))

    raise typer.Exit(run(loaded, on_ready))
