"""`penstock acl`: add, list and remove permissions, and ask what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import cluster_of, failing_as
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import show_json, show_table
from penstock.cli.prompts import confirm
from penstock.security.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    OPERATIONS_OF,
    Acl,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.security.principal import Principal

if TYPE_CHECKING:
    from penstock.admin import Cluster

_HELP = "Add, list and remove permissions; ask who may do what."
app = typer.Typer(no_args_is_help=True, help=_HELP)

_TIMEOUT_S = 15.0

Who = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="User:alice, or alice; '*' for everyone.")]
Operations = Annotated[
    str, typer.Argument(metavar="OPERATIONS", help="Such as READ or READ,WRITE; ALL for every operation.")
]
Topic = Annotated[str | None, typer.Option(metavar="NAME", help="A topic; '*' for every topic.")]
Group = Annotated[str | None, typer.Option(metavar="NAME", help="A consumer group; '*' for every group.")]
TransactionalId = Annotated[str | None, typer.Option(metavar="NAME", help="A transactional id; '*' for every one.")]
ClusterFlag = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefix = Annotated[bool, typer.Option("--prefix", help="The name is a prefix: everything that begins with it.")]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Only from this address.")]
AnyHost = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Only permissions for this address.")]


@app.callback(help=_HELP)
def _acl() -> None:
    pass


@app.command()
def add(
    context: typer.Context,
    principal: Who,
    operations: Operations,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: ClusterFlag = False,
    prefix: Prefix = False,
    deny: Annotated[bool, typer.Option("--deny", help="Deny it instead of allowing it; a denial always wins.")] = False,
    host: Host = ANY_HOST,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Allow or deny operations."""
    resources = _resources(topic, group, transactional_id, is_cluster=cluster, is_prefix=prefix)
    who = _principal(principal)
    permission = Permission.DENY if deny else Permission.ALLOW
    wanted = []
    for resource in resources:
        for operation in _operations(operations):
            _check_meaning(operation, resource.type)
            wanted.append(Acl(resource, AclEntry(who, host, operation, permission)))
    done = _cluster(context, bootstrap).acls.add(wanted)
    failed = {str(acl): error.message for acl, error in done.errors.items()}
    if json:
        show_json({"added": [_as_json(acl) for acl in done.values], "failed": failed})
    else:
        for acl in done.values:
            typer.echo(f"added {acl}")
    if failed:
        raise CommandError("; ".join(f"{acl} was not added: {reason}" for acl, reason in failed.items()))


@app.command("list")
def list_(
    context: typer.Context,
    principal: Annotated[
        str | None, typer.Option(metavar="PRINCIPAL", help="Only those of User:alice, or alice.")
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="Only those that apply to this topic.")] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Only those that apply to this group.")] = None,
    transactional_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those that apply to this transactional id.")
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Only those that apply to the cluster.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """List permissions."""
    who = None if principal is None else str(_principal(principal))
    named = _named(topic, group, transactional_id, is_cluster=cluster)
    filters = [AclFilter(type_, name, PatternType.MATCH, who) for type_, name in named] or [AclFilter(principal=who)]
    acls = _cluster(context, bootstrap).acls
    with failing_as("permissions cannot be listed"):
        found = [acl for wanted in filters for acl in acls.list(wanted)]
    if json:
        show_json([_as_json(acl) for acl in found])
    elif found:
        headings = ("principal", "permission", "operation", "resource", "host")
        show_table(
            headings,
            [
                (entry.principal, entry.permission.name, entry.operation.name, resource, entry.host)
                for resource, entry in found
            ],
        )
    else:
        typer.echo("there are no such permissions", err=True)


@app.command()
def remove(
    context: typer.Context,
    principal: Who,
    operations: Annotated[
        str, typer.Argument(metavar="OPERATIONS", help="Only these, such as READ,WRITE; ANY for all of them.")
    ] = "ANY",
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: ClusterFlag = False,
    prefix: Prefix = False,
    host: AnyHost = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Remove permissions and denials of a principal: those about the named resource, or all of them."""
    who = str(_principal(principal))
    named = _named(topic, group, transactional_id, is_cluster=cluster)
    pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
    filters = [
        AclFilter(type_, name, pattern, who, host, operation)
        for type_, name in named
        for operation in _operations(operations, allows_any=True)
    ] or [AclFilter(principal=who, host=host, operation=each) for each in _operations(operations, allows_any=True)]
    acls = _cluster(context, bootstrap).acls
    with failing_as("nothing was removed"):
        found = [acl for wanted in filters for acl in acls.list(wanted)]
    if not found:
        raise CommandError(f"nothing was removed: {who} has no such permissions; see penstock acl list")
    if not yes:
        confirm(f"Remove {len(found)} permissions of {who}: {'; '.join(map(str, found))}?")
    done = acls.remove(filters)
    removed = [acl for gone in done.values.values() for acl in gone]
    if json:
        show_json({"removed": [_as_json(acl) for acl in removed]})
    else:
        for acl in removed:
            typer.echo(f"removed {acl}")
    for error in done.errors.values():
        raise CommandError(f"not everything was removed: {error.message}")


@app.command()
def check(
    context: typer.Context,
    principal: Who,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="Such as READ.")],
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="A topic.")] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="A consumer group.")] = None,
    transactional_id: Annotated[str | None, typer.Option(metavar="NAME", help="A transactional id.")] = None,
    cluster: ClusterFlag = False,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="From this address.")] = "127.0.0.1",
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Say whether a principal may do something, and which rule says so; exits with 1 if it may not."""
    named = _named(topic, group, transactional_id, is_cluster=cluster)
    if len(named) != 1:
        raise typer.BadParameter("name one resource: --topic, --group, --transactional-id or --cluster")
    ((type_, name),) = named
    who = _principal(principal)
    (wanted,) = _operations(operation)[:1]
    with failing_as("the permission cannot be checked"):
        decision = _cluster(context, bootstrap).acls.check(who, wanted, type_, name, host=host)
    question = f"may {who} {wanted.name} {ResourcePattern(type_, name)} from {host}?"
    if json:
        show_json(
            {
                "allowed": decision.is_allowed,
                "reason": decision.reason,
                "acl": None if decision.acl is None else _as_json(decision.acl),
            }
        )
    elif decision.acl is None:
        typer.echo(f"{question} {'yes' if decision.is_allowed else 'no'}: {decision.reason}")
    else:
        typer.echo(f"{question} {'yes' if decision.is_allowed else 'no'}, by {decision.reason}")
    if not decision.is_allowed:
        raise typer.Exit(1)


def _cluster(context: typer.Context, bootstrap: str | None) -> Cluster:
    return cluster_of(context, bootstrap, timeout_s=_TIMEOUT_S)


def _principal(text: str) -> Principal:
    try:
        return Principal.parse(text) if ":" in text else Principal.user(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="PRINCIPAL") from None


def _operations(text: str, *, allows_any: bool = False) -> list[Operation]:
    left_out = {Operation.UNKNOWN} if allows_any else {Operation.UNKNOWN, Operation.ANY}
    known = {each.name: each for each in Operation if each not in left_out}
    names = [part.strip().upper().replace("-", "_") for part in text.split(",") if part.strip()]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"there is no operation {name}, only {', '.join(known)}", param_hint="OPERATIONS")
    if not names:
        raise typer.BadParameter("name at least one operation", param_hint="OPERATIONS")
    return [known[name] for name in dict.fromkeys(names)]


def _named(
    topic: str | None, group: str | None, transactional_id: str | None, *, is_cluster: bool
) -> list[tuple[ResourceType, str]]:
    named = {
        ResourceType.TOPIC: topic,
        ResourceType.GROUP: group,
        ResourceType.TRANSACTIONAL_ID: transactional_id,
        ResourceType.CLUSTER: CLUSTER_NAME if is_cluster else None,
    }
    return [(type_, name) for type_, name in named.items() if name is not None]


def _resources(
    topic: str | None, group: str | None, transactional_id: str | None, *, is_cluster: bool, is_prefix: bool
) -> list[ResourcePattern]:
    named = _named(topic, group, transactional_id, is_cluster=is_cluster)
    if not named:
        raise typer.BadParameter("name a resource: --topic, --group, --transactional-id or --cluster")
    return [
        ResourcePattern(
            type_,
            name,
            PatternType.PREFIXED if is_prefix and type_ is not ResourceType.CLUSTER else PatternType.LITERAL,
        )
        for type_, name in named
    ]


def _check_meaning(operation: Operation, type_: ResourceType) -> None:
    """An ACL that no call asks for would look like a permission and be none."""
    known = OPERATIONS_OF[type_]
    if operation is not Operation.ALL and operation not in known:
        noun = type_.name.lower().replace("_", " ")
        raise typer.BadParameter(
            f"{operation.name} means nothing for a {noun}: use {', '.join(each.name for each in known)} or ALL",
            param_hint="OPERATIONS",
        )


def _as_json(acl: Acl) -> dict[str, str]:
    (type_, name, pattern), (principal, host, operation, permission) = acl
    return {
        "principal": str(principal),
        "permission": permission.name,
        "operation": operation.name,
        "resource_type": type_.name,
        "resource_name": name,
        "pattern_type": pattern.name,
        "host": host,
    }
