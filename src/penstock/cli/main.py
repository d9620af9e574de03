"""The `penstock` command: puts the commands together and turns failures into one line and an exit code.

Rules:
- Exit codes: 0 done, 1 failed, 2 wrongly called, 130 interrupted.
- A command's module is light; what is heavy is imported inside the command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.options import DEFAULT_BOOTSTRAP, SharedBootstrap
from penstock.errors import PenstockError

# Where each command lives; the last word is the function, or the group's app.
COMMANDS = {
    "serve": "penstock.cli.serve:serve",
    "topic": "penstock.cli.topic:app",
    "group": "penstock.cli.group:app",
    "broker": "penstock.cli.broker:app",
    "send": "penstock.cli.send:send",
    "tail": "penstock.cli.tail:tail",
    "timer": "penstock.cli.timer:app",
    "deadletter": "penstock.cli.deadletter:app",
    "push": "penstock.cli.push:push",
    "pipeline": "penstock.cli.pipeline:app",
    "config": "penstock.cli.config:app",
    "dump": "penstock.cli.dump:dump",
}


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The command line; only the command that is asked for is loaded, all of them if none is (for the help)."""
    app = typer.Typer(
        name="penstock",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="A message queue that Kafka clients take for Kafka.",
    )
    app.callback()(_penstock)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name in [asked] if asked in COMMANDS else COMMANDS:
        command = resolve_name(COMMANDS[name])
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


def _penstock(
    bootstrap: SharedBootstrap = DEFAULT_BOOTSTRAP,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """One command from its arguments to its exit code."""
    try:
        code = build_app(arguments)(arguments, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        # Without a command the help has been printed, and nothing is left to say.
        if message := " ".join(error.format_message().split()):
            typer.echo(f"penstock: {message.rstrip('.')}; --help tells more", err=True)
        return error.exit_code
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        return 1
    except typer.Abort:
        return 130
    except BrokenPipeError:
        # The reader has left, as `head` does; what is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0
