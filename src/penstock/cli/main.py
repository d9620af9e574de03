"""The `penstock` command: puts the commands together and turns failures into one line and an exit code.

Rules:
- Exit codes: 0 done, 1 failed, 2 wrongly called, 130 interrupted.
- A command's module is light; what is heavy is imported inside the command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import config, send, serve, tail, topic
from penstock.cli.options import DEFAULT_BOOTSTRAP, SharedBootstrap
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A message queue that Kafka clients take for Kafka.",
)
app.command("serve")(serve.serve)
app.add_typer(topic.app, name="topic")
app.command("send")(send.send)
app.command("tail")(tail.tail)
app.add_typer(config.app, name="config")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
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
        code = app(arguments, prog_name="penstock", standalone_mode=False)
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
