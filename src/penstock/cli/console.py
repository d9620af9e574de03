"""`penstock console`: the management console as a web server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock import logs
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, bootstrap_of
from penstock.cli.output import pairs
from penstock.cli.serve.child import dying_with
from penstock.errors import ConfigError
from penstock.extras import missing_extra

if TYPE_CHECKING:
    from penstock.console.settings import OidcSettings

_DEFAULT_NAME = "local"


def console(
    context: typer.Context,
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", "-c", metavar="NAME=HOST:PORT", help="A cluster to manage; repeatable."),
    ] = None,
    lake: Annotated[
        list[str] | None,
        typer.Option(
            "--lake",
            metavar="NAME=PATH",
            help="The lake of a cluster, which `penstock pipeline archive` makes: a folder, or a URL such as "
            "s3://bucket/lake; repeatable.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = 9095,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the console's SQLite database.")] = Path(
        "data/console"
    ),
    database_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the address of another database for the console's own state."),
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="librdkafka settings, one NAME=VALUE per line, such as security.protocol=ssl."
        ),
    ] = None,
    mail_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Mail server for alerts, one NAME=VALUE per line: host, port, sender, user, password, tls.",
        ),
    ] = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name under which browsers reach the console; repeatable."),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Origin of a proxy in front of the console, such as https://queue.example."),
    ] = None,
    https: Annotated[
        bool, typer.Option("--https", help="Browsers reach the console by HTTPS, through a proxy: secure cookies.")
    ] = False,
    oidc_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A provider to sign in through (OpenID Connect), one NAME=VALUE per line."),
    ] = None,
    poll: Annotated[str, typer.Option(metavar="TIME", help="Pause between two polls of a cluster.")] = "5s",
    bootstrap: Bootstrap = None,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run the management console: pages for browsers, and a REST API under /api.

    It prints an address that signs you in once. It listens on loopback unless --host says otherwise.
    """
    try:
        from penstock.console.server import serve
        from penstock.console.settings import (
            ClusterSettings,
            ConsoleSettings,
            MailSettings,
            PollingSettings,
            SecuritySettings,
        )
    except ModuleNotFoundError as error:
        raise missing_extra(error, "penstock console") or error from None
    from penstock.durations import parse_duration

    mail = pairs(_lines(mail_file), "--mail-file") if mail_file is not None else {}
    client_settings = pairs(_lines(settings_file), "--settings-file") if settings_file is not None else {}
    named = pairs(cluster or (), "--cluster") or {_DEFAULT_NAME: bootstrap_of(context, bootstrap)}
    lakes = _lakes(lake, named)
    origins = tuple(each.rstrip("/") for each in origin or ())
    try:
        interval_ms = parse_duration(poll)
    except ValueError:
        raise typer.BadParameter(f"{poll!r} is not a time such as 5s", param_hint="--poll") from None
    try:
        settings = ConsoleSettings(
            clusters=tuple(
                ClusterSettings(name, at, client_settings, lakes.get(name, "")) for name, at in named.items()
            ),
            host=host,
            port=port,
            data=data,
            database="" if database_file is None else "".join(_lines(database_file)),
            polling=PollingSettings(interval_ms=max(1000, interval_ms)),
            security=SecuritySettings(
                is_secure_cookie=https or any(each.startswith("https://") for each in origins),
                hosts=tuple(host_name or ()),
                origins=origins,
            ),
            mail=MailSettings.of(mail),
            oidc=None if oidc_file is None else _oidc(oidc_file),
        )
    except ConfigError as error:
        raise CommandError(str(error)) from None

    def on_ready(address: str, login: str) -> None:
        if supervised:
            typer.echo(login)
        else:
            typer.echo(f"The console is ready. Open this address once; it signs you in as admin:\n  {login}")
            typer.echo(f"Later: {address}. Press Ctrl-C to stop it.")

    if supervised:
        dying_with(os.getppid())()
    logs.configure("warning" if supervised else "info", "text", process="console")
    raise typer.Exit(serve(settings, on_ready))


def _oidc(path: Path) -> OidcSettings:
    try:
        import jwt  # noqa: F401  said now, and not at the first login

        from penstock.console.oidc.settings_file import oidc_settings
    except ModuleNotFoundError as error:
        raise missing_extra(error, "penstock console --oidc-file") or error from None
    try:
        return oidc_settings(pairs(_lines(path), "--oidc-file"))
    except ConfigError as error:
        raise CommandError(f"{path}: {error}") from None


def _lakes(given: list[str] | None, clusters: Mapping[str, str]) -> dict[str, str]:
    """Where the lake of each cluster is."""
    found = pairs(given or (), "--lake")
    for name, path in found.items():
        if name not in clusters:
            raise typer.BadParameter(
                f"there is no cluster {name}; there are {', '.join(clusters)}", param_hint="--lake"
            )
        if not path:
            raise typer.BadParameter(f"the lake of {name} needs a path", param_hint="--lake")
    return {name: path if "://" in path else str(Path(path).absolute()) for name, path in found.items()}


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CommandError(f"{path} cannot be read: {reason}") from None
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
