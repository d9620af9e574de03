"""`penstock user`: add, list and remove users, and change their passwords."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.connection import cluster_of, failing_as
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import show_json, show_table
from penstock.cli.prompts import confirm, report_deletion

app = typer.Typer(no_args_is_help=True, help="Add, list and remove users, and change their passwords.")

Name = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
Names = Annotated[list[str], typer.Argument(metavar="USER...", help="Names of users.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with the password in its first line; - for standard input."),
]
Mechanism = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512; repeat it for both, which is the default."),
]
Iterations = Annotated[
    int, typer.Option(min=4096, max=16_384, help="Hash iterations: more make guessing the password slower.")
]


@app.command()
def add(
    context: typer.Context,
    name: Name,
    password_file: PasswordFile = None,
    mechanism: Mechanism = None,
    iterations: Iterations = 8192,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Add a user. The command prompts for the password or reads it from --password-file, never from an argument."""
    mechanisms = _mechanisms(mechanism)
    users = cluster_of(context, bootstrap).users
    if any(user.name == name for user in users.list()):
        raise CommandError(f"user {name} already exists; nothing was changed: change its password with `user password`")
    with failing_as(f"user {name} was not added"):
        users.set_password(name, _password(password_file), mechanisms=mechanisms, iterations=iterations)
    if json:
        show_json({"user": name, "added": True})
    else:
        typer.echo(f"added user {name}")


@app.command()
def password(
    context: typer.Context,
    name: Name,
    password_file: PasswordFile = None,
    iterations: Iterations = 8192,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Change the password of a user. Existing connections stay until they have to log in again."""
    users = cluster_of(context, bootstrap).users
    known = next((user for user in users.list() if user.name == name), None)
    if known is None:
        raise CommandError(f"there is no user {name}; nothing was changed: add it with `user add`")
    with failing_as(f"the password of user {name} was not changed"):
        users.set_password(name, _password(password_file), mechanisms=tuple(known.iterations), iterations=iterations)
    if json:
        show_json({"user": name, "changed": True})
    else:
        typer.echo(f"changed the password of user {name}")


@app.command("list")
def list_(context: typer.Context, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """List users, and how they can log in."""
    users = cluster_of(context, bootstrap).users.list()
    if json:
        show_json([{"user": user.name, "iterations": dict(user.iterations)} for user in users])
        return
    rows = [(user.name, ", ".join(sorted(user.iterations)), max(user.iterations.values())) for user in users]
    show_table(("user", "mechanisms", "iterations"), rows, right=("iterations",))


@app.command()
def remove(
    context: typer.Context,
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Remove users. Existing connections stay until they have to log in again."""
    if not yes:
        confirm(f"Remove {', '.join(names)}?")
    report_deletion("user", cluster_of(context, bootstrap).users.remove(names), json)


def _password(file: Path | None) -> str:
    if file is None and sys.stdin.isatty():
        typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return typed
    try:
        text = sys.stdin.readline() if file is None or str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--password-file {file}: cannot be read: {error}; nothing was changed") from None
    found = text.splitlines()[0] if text.strip() else ""
    if not found:
        raise CommandError("the password is empty; nothing was changed")
    return found


def _mechanisms(given: list[str] | None) -> tuple[str, ...]:
    from penstock.admin.users import MECHANISMS

    for name in given or ():
        if name not in MECHANISMS:
            raise typer.BadParameter(f"{name!r}: expected {' or '.join(MECHANISMS)}", param_hint="--mechanism")
    return tuple(given or MECHANISMS)
