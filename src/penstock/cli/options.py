"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

Bootstrap = Annotated[str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Broker to connect to.")]
# The same option before the command's name; only this one reads the environment and shows the default.
SharedBootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        envvar="PENSTOCK_BOOTSTRAP",
        help="Broker to connect to; commands accept this option too.",
    ),
]
SharedCommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar="PENSTOCK_COMMAND_CONFIG",
        help="How commands connect: librdkafka settings, one NAME=VALUE per line, such as security.protocol=sasl_ssl.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def bootstrap_of(context: typer.Context, given: str | None) -> str:
    """The broker to talk to: the command's own option, else the one given before the command."""
    inherited: str = context.find_root().params["bootstrap"]
    return given or inherited
