"""`penstock quota`: what users, client ids and addresses are limited to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from penstock.cli.connection import cluster_of
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import show_json, show_table
from penstock.security.quota_entity import CLIENT_ID, DEFAULT_NAME, IP, USER, QuotaEntity, quota_entity
from penstock.security.quota_keys import QuotaKey

app = typer.Typer(no_args_is_help=True, help="Limit what users, client ids and addresses use of each broker.")

_KEYS = ", ".join(key.value for key in QuotaKey)

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="User that the quota is for.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="All users without a quota of their own.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Client id that the quota is for.")]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="All client ids without a quota of their own.")
]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="IP address that the quota is for.")]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="All addresses without a quota of their own.")]


@app.command("set")
def set_(
    context: typer.Context,
    limits: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help=f"What is limited, and to how much a second: {_KEYS}.")
    ],
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Set a quota; other limits of the same entity stay.

    Each broker counts for itself.
    """
    entity = _one_entity(_names(user, default_user, client_id, default_client_id, ip, default_ip))
    change = dict(map(_limit, limits))
    cluster_of(context, bootstrap).quotas.alter({entity: change})[entity]
    typer.echo(f"{entity}: {', '.join(f'{key}={_number(value)}' for key, value in change.items())}")


@app.command("list")
def list_(
    context: typer.Context,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """List quotas: all of them, or those of a user, a client id or an address."""
    names = _names(user, default_user, client_id, default_client_id, ip, default_ip)
    found = cluster_of(context, bootstrap).quotas.list(names)
    if json:
        show_json(
            [
                {
                    "entity": {type_: name or None for type_, name in each.entity.names.items()},
                    "limits": dict(each.limits),
                }
                for each in found
            ]
        )
    elif found:
        rows = [(each.entity, key, _number(value)) for each in found for key, value in each.limits.items()]
        show_table(("entity", "quota", "limit"), rows, right=("limit",))
    else:
        typer.echo("no quota", err=True)


@app.command()
def remove(
    context: typer.Context,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY...]", help="Limits to remove; default: all of them.")
    ] = None,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Remove a quota, or some of its limits; fails if there is none."""
    entity = _one_entity(_names(user, default_user, client_id, default_client_id, ip, default_ip))
    quotas = cluster_of(context, bootstrap).quotas
    limits = next((each.limits for each in quotas.list(entity.names) if each.entity == entity), {})
    missing = [key for key in keys or () if key not in limits]
    if missing or not limits:
        raise CommandError(f"nothing to remove: {entity} has no quota{' ' + ', '.join(missing) if missing else ''}")
    removed = keys or list(limits)
    quotas.alter({entity: dict.fromkeys(removed)})[entity]
    typer.echo(f"{entity}: removed {', '.join(removed)}")


def _names(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
) -> dict[str, str]:
    """The names by type, the empty one for the default."""
    found: dict[str, str] = {}
    for type_, name, is_default in (
        (USER, user, default_user),
        (CLIENT_ID, client_id, default_client_id),
        (IP, ip, default_ip),
    ):
        if name is not None and is_default:
            raise typer.BadParameter(f"--{type_} and --default-{type_} exclude each other")
        if name == DEFAULT_NAME:
            raise typer.BadParameter(f"--{type_} is empty; --default-{type_} stands for all without a quota")
        if name is not None or is_default:
            found[type_] = name or DEFAULT_NAME
    return found


def _one_entity(names: Mapping[str, str]) -> QuotaEntity:
    if not names:
        raise typer.BadParameter("say whom the quota is for: --user, --client-id, --ip or a default of these")
    try:
        return quota_entity({type_: name or None for type_, name in names.items()})
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _limit(text: str) -> tuple[str, float]:
    key, separator, value = text.partition("=")
    try:
        if separator and any(key == known.value for known in QuotaKey):
            return key, float(value)
    except ValueError:
        pass
    raise typer.BadParameter(f"{text!r}: expected KEY=NUMBER with one of the keys {_KEYS}")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
