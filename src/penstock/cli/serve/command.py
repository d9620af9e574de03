"""`penstock serve`: loads settings from file, environment and options, and runs a broker.

With `--brokers` this process supervises several brokers, each a `penstock serve` process of its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from penstock import logs
from penstock.broker.service_manager import ServiceManager
from penstock.cli.output import pairs
from penstock.cli.serve.secret_options import hide_secrets
from penstock.cli.serve.welcome import announcement, welcome, welcome_to_several
from penstock.clock import SystemClock
from penstock.config.broker import Config
from penstock.config.loader import Loaded, load
from penstock.gc_freeze import freezing


def serve(
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Data folder.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address for Kafka clients.")] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address for health and metrics.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with settings.")] = None,
    id: Annotated[str | None, typer.Option(metavar="N", help="Broker id.")] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(metavar="zk://HOST:PORT/PATH", help="ZooKeeper of the cluster to join."),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database to store topics in: mysql://USER:PASSWORD@HOST/DATABASE, postgresql://… or sqlite:///FILE. "
            "Brokers with the same database form a cluster.",
        ),
    ] = None,
    sql_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File that has the URL of the database, instead of --sql.")
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Run N brokers under one supervisor: ids and ports count up from --id, --listen and --http; "
            "each uses the folder broker-ID in --data.",
        ),
    ] = 1,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text or json.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Any setting that `penstock config` shows; repeatable."
        ),
    ] = None,
    console: Annotated[
        bool, typer.Option("--console", help="Run the management console beside the broker, on loopback.")
    ] = False,
    console_port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port of the console; 0: a free one.")
    ] = 9095,
    console_lake: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="The lake that the console shows: a folder, or a URL such as s3://bucket/lake."
        ),
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
        "sql.url": sql,
        "sql.url_file": sql_file,
        "logging.level": log_level,
        "logging.format": log_format,
    }
    flags = {key: value for key, value in named.items() if value is not None}
    for key, value in pairs(set_ or (), "--set").items():
        if key in flags:
            raise typer.BadParameter(f"{key} is given by its own option too", param_hint="--set")
        flags[key] = value
    loaded = load(config, os.environ, flags)
    hide_secrets(flags)
    settings = loaded.config
    name = f"broker-{settings.broker.id}" if supervised else None
    logs.configure(settings.logging.level, settings.logging.format, process=name)
    service_manager = ServiceManager.of_environment(os.environ, SystemClock())
    if brokers > 1 and console:
        raise typer.BadParameter("with --brokers, start the console by itself: penstock console")
    if console_lake is not None and not console:
        raise typer.BadParameter("it is an option of the console: give --console too", param_hint="--console-lake")
    if brokers > 1:
        raise typer.Exit(_serve_several(loaded, config, flags, brokers, service_manager))

    with freezing():
        from penstock.broker.server import serve as run

    beside = None
    if console:
        from penstock.cli.serve.console_child import ConsoleChild

        beside = ConsoleChild(settings.broker.data, console_port, typer.echo, console_lake)

    def on_ready(kafka: str, http: str) -> None:
        folder = str(settings.broker.data)
        typer.echo(announcement(kafka, http) if supervised else welcome(kafka, http, folder, _database(settings)))
        if beside is not None:
            beside.start(kafka)

    try:
        status = run(loaded, on_ready, service_manager)
    finally:
        if beside is not None:
            beside.stop()
    raise typer.Exit(status)


def _serve_several(
    loaded: Loaded, file: Path | None, flags: Mapping[str, str], count: int, service_manager: ServiceManager
) -> int:
    from penstock.cli.serve.siblings import Given, children, siblings
    from penstock.cli.serve.supervisor import Pauses, supervise

    brokers = children(Given(file, flags), siblings(loaded, count, socket.gethostname()))
    data = str(loaded.config.broker.data)

    def on_ready() -> None:
        typer.echo(welcome_to_several(brokers, data, _database(loaded.config)))
        service_manager.ready(f"{count} brokers serve")

    return supervise([brokers], Pauses(), on_ready, service_manager.alive)


def _database(settings: Config) -> str | None:
    return str(settings.sql.address()) if settings.sql.is_set else None
