"""Addresses of databases as options, files or a variable; those with passwords do not stay on the command line.

Every user of the host can read a command line, for as long as the process runs. A command that is given an address with
a password starts itself again at once, in the same process, with the addresses in its environment, which only its own
user and root can read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from penstock.cli.failure import CommandError
from penstock.config.database_address import DatabaseAddress
from penstock.config.loader import DATABASE_SERVERS_VARIABLE
from penstock.errors import ConfigError

_PRIMARY, _PRIMARY_FILE = "--primary", "--primary-file"
_REPLICA, _REPLICA_FILE = "--replica", "--replica-file"

Primary = Annotated[
    str | None, typer.Option(_PRIMARY, metavar="URL", help="The primary: mysql://USER:PASSWORD@HOST:PORT/DATABASE.")
]
PrimaryFile = Annotated[
    Path | None, typer.Option(_PRIMARY_FILE, metavar="FILE", help="File with the URL of the primary: one line.")
]
Replicas = Annotated[list[str] | None, typer.Option(_REPLICA, metavar="URL", help="A replica; repeatable.")]
ReplicaFiles = Annotated[
    list[Path] | None, typer.Option(_REPLICA_FILE, metavar="FILE", help="File with the URL of a replica; repeatable.")
]


def database_urls(
    primary: str | None, primary_file: Path | None, replicas: Sequence[str] | None, replica_files: Sequence[Path] | None
) -> list[str]:
    """The addresses, the primary first. Does not return if one with a password is on the command line of this process:
    the same command goes on without it there.
    """
    if primary is not None and primary_file is not None:
        raise typer.BadParameter(f"{_PRIMARY} and {_PRIMARY_FILE} are both given: allowed is one of them")
    first = _read(primary_file, _PRIMARY_FILE) if primary_file is not None else primary
    others = [*(replicas or ()), *(_read(file, _REPLICA_FILE) for file in replica_files or ())]
    if first is None and not others:
        given = os.environ.get(DATABASE_SERVERS_VARIABLE, "").split()
        for url in given:
            _check(url, DATABASE_SERVERS_VARIABLE)
        if given:
            return given
    if first is None:
        raise typer.BadParameter(f"give the address of the primary with {_PRIMARY} or {_PRIMARY_FILE}")
    _check(first, _PRIMARY)
    for url in others:
        _check(url, _REPLICA)
    # A space would end an address.
    urls = [url.replace(" ", "%20") for url in (first, *others)]
    on_command_line = [url for url in (primary, *(replicas or ())) if url is not None and _is_argument(url)]
    if any(DatabaseAddress.parse(url).password for url in on_command_line):
        _start_again(urls)
    return urls


def without_urls(command: Sequence[str]) -> list[str]:
    """A command line without the options that name servers."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in (_PRIMARY, _PRIMARY_FILE, _REPLICA, _REPLICA_FILE):
            kept.append(word)
        elif not equals:
            next(words, "")
    return kept


def _start_again(urls: Sequence[str]) -> NoReturn:
    environment = {**os.environ, DATABASE_SERVERS_VARIABLE: " ".join(urls)}
    os.execve(sys.executable, without_urls(sys.orig_argv), environment)


def _is_argument(url: str) -> bool:
    return any(word == url or word.endswith(f"={url}") for word in sys.orig_argv)


def _read(file: Path, option: str) -> str:
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CommandError(f"{option} {file}: cannot be read: {reason}") from None


def _check(url: str, option: str) -> None:
    try:
        DatabaseAddress.parse(url)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
