"""`penstock worker`: runs the subscriptions of an application as a process."""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penstock import logs
from penstock.config.address import Address, parse_address
from penstock.durations import parse_duration


class LogLevel(StrEnum):
    """The least important lines that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How lines are written."""

    TEXT = "text"
    JSON = "json"


def worker(
    app: Annotated[
        str,
        typer.Argument(
            metavar="APP",
            help="Where the client is: MODULE:ATTRIBUTE, such as shop.app:client; also a function that returns it.",
        ),
    ],
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve health and Prometheus metrics here, such as 127.0.0.1:8093."),
    ] = None,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="How long a stop waits for running handlers, and for unsent messages.")
    ] = "30s",
    reload: Annotated[
        bool,
        typer.Option("--reload", help="For development: start again when a .py file below this folder changes."),
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="Unless the application configures logging.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help="Unless the application configures logging.")] = LogFormat.TEXT,
) -> None:
    """Run the subscriptions of an application until Ctrl-C or SIGTERM.

    Modules are found in the current folder and on the Python path. The first signal lets running handlers finish; a
    second one stops at once. Start several workers to share the work of a group.
    """
    from penstock.cli.worker.application import check_target, load_client
    from penstock.cli.worker.reload import run_reloading
    from penstock.cli.worker.stop_signals import StopSignals
    from penstock.cli.worker.worker_process import WorkerOptions, run_worker

    check_target(app)
    options = WorkerOptions(_address(http), _seconds(grace))
    if reload:
        arguments = [app, "--grace", grace, "--log-level", log_level, "--log-format", log_format]
        run_reloading([*arguments, *([] if http is None else ["--http", http])], Path.cwd(), options.grace_s)
        return
    client = load_client(app, Path.cwd())
    if not logging.getLogger().handlers:
        logs.configure(log_level, log_format)
    run_worker(app, client, options, StopSignals())


def _address(text: str | None) -> Address | None:
    try:
        return None if text is None else parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: expected {error}", param_hint="--http") from None


def _seconds(text: str) -> float:
    try:
        return parse_duration(text) / 1000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--grace") from None
