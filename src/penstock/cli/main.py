"""The `penstock` command: assembles the commands, and turns failures into one line and an exit code.

Rules:
- Exit codes: 0 done, 1 failed, 2 wrong arguments, 130 interrupted.
- Importing a command's module is cheap; heavy libraries are imported inside the command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.options import DEFAULT_BOOTSTRAP, SharedBootstrap, SharedCommandConfig
from penstock.errors import PenstockError
from penstock.extras import missing_extra
from penstock.gc_freeze import freezing

# The function of each command, or the app of its subcommands.
COMMANDS = {
    "serve": "penstock.cli.serve.command:serve",
    "topic": "penstock.cli.topic.commands:app",
    "group": "penstock.cli.group.commands:app",
    "broker": "penstock.cli.broker:app",
    "quota": "penstock.cli.quota:app",
    "user": "penstock.cli.user:app",
    "dbnode": "penstock.cli.dbnode:app",
    "acl": "penstock.cli.acl:app",
    "send": "penstock.cli.messages.send:send",
    "tail": "penstock.cli.messages.tail:tail",
    "timer": "penstock.cli.timer:app",
    "deadletter": "penstock.cli.deadletter:app",
    "push": "penstock.cli.push:push",
    "worker": "penstock.cli.worker.command:worker",
    "delay-bridge": "penstock.cli.delay_bridge:delay_bridge",
    "pipeline": "penstock.cli.pipeline.commands:app",
    "console": "penstock.cli.console:console",
    "config": "penstock.cli.config:app",
    "dump": "penstock.cli.dump:dump",
}


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The command line parser. It loads the one command that is called, or all for the help."""
    app = typer.Typer(
        name="penstock",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="A message queue that speaks the Kafka protocol.",
    )
    app.callback()(_penstock)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    # Modules live as long as the process: collecting garbage while they are loaded would be work for nothing.
    with freezing():
        commands = {name: resolve_name(COMMANDS[name]) for name in ([asked] if asked in COMMANDS else COMMANDS)}
    for name, command in commands.items():
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
    command_config: SharedCommandConfig = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    try:
        code = build_app(arguments)(arguments, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        # Without a command, typer has printed the help and the message is empty.
        if message := " ".join(error.format_message().split()):
            typer.echo(f"penstock: {message.rstrip('.')}; see --help", err=True)
        return error.exit_code
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        return 1
    except ModuleNotFoundError as error:
        missing = missing_extra(error, f"penstock {arguments[0] if arguments else ''}".strip())
        if missing is None:
            raise
        typer.echo(f"penstock: {missing}", err=True)
        return 1
    except typer.Abort:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone, such as `head`; flushing the rest must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0
