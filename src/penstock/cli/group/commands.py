"""`penstock group`: list, describe, reset, pause and delete consumer groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import cluster_of, failing_as
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import show_json, show_table
from penstock.cli.positions import time_option
from penstock.cli.prompts import confirm, report_deletion
from penstock.errors import Code
from penstock.ids import TopicPartition

if TYPE_CHECKING:
    from penstock.admin import Cluster, GroupDescription, GroupPause, ResetPlan, ResetTarget

app = typer.Typer(no_args_is_help=True, help="List, describe, reset, pause and delete consumer groups.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Group name.")]
Names = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Group names.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; repeatable.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command("list")
def list_(context: typer.Context, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """List groups with their state and what is paused."""
    cluster = cluster_of(context, bootstrap)
    listing = cluster.groups.list()
    with failing_as("group settings cannot be read"):
        pauses = cluster.groups.pauses(group.name for group in listing.groups).all()
    found = [(group.name, _state(group.state), pauses[group.name]) for group in listing.groups]
    if json:
        show_json([{"group": name, "state": state, **_pause_fields(pause)} for name, state, pause in found])
    elif found:
        show_table(("group", "state", "paused"), [(name, state, _paused(pause)) for name, state, pause in found])
    else:
        typer.echo("no groups; a group appears when a consumer joins it or commits offsets for it", err=True)
    for error in listing.errors:
        typer.echo(f"penstock: groups may be missing: {error}", err=True)


@app.command()
def describe(context: typer.Context, names: Names, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Show members with their partitions, and committed offset, end and lag of each partition."""
    cluster = cluster_of(context, bootstrap)
    described = [_described(cluster, name) for name in dict.fromkeys(names)]
    if json:
        show_json(described)
        return
    for number, group in enumerate(described):
        if number:
            typer.echo()
        members = group["members"]
        assignor = f", {group['assignor']}" if group["assignor"] else ""
        pause = ", paused" if group["paused"] else ""
        if not pause and group["paused_topics"]:
            pause = f", paused: {', '.join(group['paused_topics'])}"
        typer.echo(f"group {group['group']}: {group['state']}{assignor}, {_members(len(members))}{pause}")
        if members:
            columns = ("member", "client", "host", "instance", "partitions")
            rows = [(*(each[column] for column in columns[:-1]), _joined(each["partitions"])) for each in members]
            show_table(columns, rows)
            typer.echo()
        if group["offsets"]:
            shown = ("topic", "partition", "committed", "end", "lag", "client")
            show_table(
                shown,
                [[_cell(each[column]) for column in shown] for each in group["offsets"]],
                right=("partition", "committed", "end", "lag"),
            )
            lags = [each["lag"] for each in group["offsets"] if each["lag"] is not None]
            typer.echo(f"total lag: {sum(lags)}")
        else:
            typer.echo("no committed offsets")


@app.command()
def delete(
    context: typer.Context,
    names: Names,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Delete groups that have no members, with their committed offsets."""
    cluster = cluster_of(context, bootstrap)
    wanted = list(dict.fromkeys(names))
    if not yes:
        confirm(f"Delete {', '.join(wanted)} with all committed offsets?")
    report_deletion("group", cluster.groups.delete(wanted), json)


@app.command()
def reset(
    context: typer.Context,
    name: Name,
    to_offset: Annotated[int | None, typer.Option(min=0, help="To this offset.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record kept.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: skip everything there is now.")] = False,
    to_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="To a time such as 2026-03-01T12:00:00Z or '10m ago'."),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="Forward by N offsets, or back if N is negative.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:P,P]", help="Only these partitions; repeatable. Default: all with a committed offset."
        ),
    ] = None,
    include_retries: Annotated[
        bool, typer.Option("--include-retries", help="Also reset the group's retry topics: failed work is repeated.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Reset the offsets of a group, also while its members run: they are fenced, rejoin, and continue from there.

    Shows how many messages will be repeated or skipped, and asks for confirmation. The group's retry and dead-letter
    topics are left out unless you name them with --topic or pass --include-retries.
    """
    target = _target(to_offset, to_time, shift_by, to_earliest=to_earliest, to_latest=to_latest)
    cluster = cluster_of(context, bootstrap)
    partitions = _parse_partitions(cluster, topic) if topic else None
    with failing_as(f"the offsets of group {name} cannot be read"):
        plan = cluster.resets.plan(name, target, partitions, include_retries=include_retries)
    if not plan.after and not plan.errors:
        raise _nothing_to_reset(plan)
    for at, error in plan.errors.items():
        hint = ": choose partitions with --topic" if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION.name else ""
        raise CommandError(f"there is no {at}{hint}" if hint else error.message)
    if not json:
        _show_plan(plan)
    members = plan.member_count
    if not dry_run:
        if not yes:
            fenced = f" It has {_members(members)}, which will be fenced and rejoin." if members else ""
            confirm(f"Reset the offsets of group {name}?{fenced}")
        with failing_as(f"the offsets of group {name} were not changed"):
            cluster.resets.apply(plan).all()
    if json:
        _show_plan_json(plan, dry_run=dry_run)
    elif dry_run:
        typer.echo(f"nothing was changed{f'; {_members(members)} would be fenced' if members else ''}")
    elif members:
        typer.echo(f"{_members(members)} fenced; group {name} continues from there once members rejoin")
    else:
        typer.echo(f"group {name} continues from there")


@app.command()
def pause(
    context: typer.Context, name: Name, topic: Topics = None, bootstrap: Bootstrap = None, json: Json = False
) -> None:
    """Stop delivery to a group, of all topics or some; its members stay joined."""
    cluster = cluster_of(context, bootstrap)
    if topic:
        cluster.topics.describe(topic).all()
    if _find(cluster, name) is None:
        typer.echo(f"group {name} does not exist yet; it will start paused", err=True)
    with failing_as(f"group {name} was not paused"):
        paused = cluster.groups.pause(name, topic or ())
    _show_pause(name, paused, json=json)


@app.command()
def resume(
    context: typer.Context, name: Name, topic: Topics = None, bootstrap: Bootstrap = None, json: Json = False
) -> None:
    """Resume delivery to a paused group, of all topics or some."""
    cluster = cluster_of(context, bootstrap)
    before = cluster.groups.pauses([name])[name]
    if not before:
        cluster.groups.describe([name]).all()
        raise CommandError(f"group {name} is not paused")
    if topic and before.is_all:
        raise CommandError(f"all of group {name} is paused: resume it without --topic")
    for each in topic or ():
        if each not in before.topics:
            raise CommandError(f"topic {each} of group {name} is not paused; paused are: {_paused(before)}")
    with failing_as(f"group {name} was not resumed"):
        paused = cluster.groups.resume(name, topic or ())
    _show_pause(name, paused, json=json)


def _show_pause(name: str, paused: GroupPause, *, json: bool) -> None:
    if json:
        show_json({"group": name, **_pause_fields(paused)})
    elif not paused:
        typer.echo(f"group {name} receives everything")
    else:
        typer.echo(f"group {name} receives nothing{'' if paused.is_all else f' of {_paused(paused)}'}")


def _pause_fields(paused: GroupPause) -> dict[str, Any]:
    return {"paused": paused.is_all, "paused_topics": list(paused.topics)}


def _paused(pause: GroupPause) -> str:
    return "all" if pause.is_all else ",".join(pause.topics)


def _target(
    to_offset: int | None, to_time: str | None, shift_by: int | None, *, to_earliest: bool, to_latest: bool
) -> ResetTarget:
    from penstock.admin import AtOffset, AtTime, Earliest, Latest, ShiftBy

    time_ms = time_option(to_time, "--to-time")
    targets: list[ResetTarget] = [
        *([AtOffset(to_offset)] if to_offset is not None else []),
        *([Earliest()] if to_earliest else []),
        *([Latest()] if to_latest else []),
        *([AtTime(time_ms)] if time_ms is not None else []),
        *([ShiftBy(shift_by)] if shift_by is not None else []),
    ]
    if len(targets) != 1:
        raise typer.BadParameter("give one of --to-offset, --to-earliest, --to-latest, --to-time, --shift-by")
    return targets[0]


def _parse_partitions(cluster: Cluster, texts: Iterable[str]) -> list[TopicPartition]:
    """TOPIC or TOPIC:0,2 as partitions that exist; topic names have no colon."""
    named = [text.partition(":") for text in texts]
    topics = cluster.topics.describe(topic for topic, _, _ in named).all()
    partitions: dict[TopicPartition, None] = {}
    for topic, colon, numbers in named:
        count = len(topics[topic].partitions)
        wanted = [word.strip() for word in numbers.split(",")] if colon else map(str, range(count))
        for word in wanted:
            if not (word.isascii() and word.isdigit()) or int(word) >= count:
                raise CommandError(
                    f"topic {topic} has no partition {word or '(empty)'}: its partitions are 0 to {count - 1}"
                )
            partitions[TopicPartition(topic, int(word))] = None
    return list(partitions)


def _nothing_to_reset(plan: ResetPlan) -> CommandError:
    if plan.left_out:
        return CommandError(
            f"group {plan.group} has committed offsets only in its retry topics ({', '.join(plan.left_out)}): "
            "pass --include-retries to reset those"
        )
    return CommandError(f"group {plan.group} has no committed offsets: choose partitions with --topic")


def _offset_rows(plan: ResetPlan) -> list[tuple[Any, ...]]:
    return [(at.topic, at.partition, plan.before.get(at), offset) for at, offset in plan.after.items()]


def _show_plan(plan: ResetPlan) -> None:
    columns = ("topic", "partition", "before", "after")
    show_table(columns, [tuple(_cell(cell) for cell in row) for row in _offset_rows(plan)], right=columns[1:])
    for topic, effect in plan.effects.items():
        if effect.repeated:
            typer.echo(f"{topic}: {_messages(effect.repeated)} handled again")
        if effect.skipped:
            typer.echo(f"{topic}: {_messages(effect.skipped)} skipped")
    for topic in plan.left_out:
        typer.echo(f"{topic} is left out, so that failed work is not repeated; --include-retries resets it too")


def _show_plan_json(plan: ResetPlan, *, dry_run: bool) -> None:
    columns = ("topic", "partition", "before", "after")
    show_json(
        {
            "group": plan.group,
            "changed": not dry_run,
            "fenced": 0 if dry_run else plan.member_count,
            "offsets": [dict(zip(columns, row, strict=True)) for row in _offset_rows(plan)],
            "topics": {
                topic: {"repeated": effect.repeated, "skipped": effect.skipped}
                for topic, effect in plan.effects.items()
            },
            "left_out": list(plan.left_out),
        }
    )


def _messages(count: int) -> str:
    return f"up to {count} messages will be" if count > 1 else "1 message will be"


def _find(cluster: Cluster, name: str) -> GroupDescription | None:
    """None if there is no such group."""
    found = cluster.groups.describe([name])
    error = found.errors.get(name)
    return None if error is not None and error.code == Code.GROUP_ID_NOT_FOUND.name else found[name]


def _described(cluster: Cluster, name: str) -> dict[str, Any]:
    described = cluster.groups.describe([name])
    paused = cluster.groups.pauses([name])[name]
    if name in described.errors and paused:
        raise CommandError(f"group {name} does not exist yet; it will start paused")
    group = described[name]
    readers = {at: member.client_id for member in group.members for at in member.partitions}
    committed = {offset.partition: offset for offset in cluster.groups.offsets([name])[name]}
    unread = cluster.offsets.latest([at for at in readers if at not in committed]).values
    return {
        "group": name,
        "state": _state(group.state),
        "assignor": group.assignor,
        **_pause_fields(paused),
        "members": [
            {
                "member": member.id,
                "client": member.client_id,
                "host": member.host,
                "instance": member.group_instance_id or "",
                "partitions": [at._asdict() for at in member.partitions],
            }
            for member in group.members
        ],
        "offsets": [
            {
                "topic": at.topic,
                "partition": at.partition,
                "committed": committed[at].committed if at in committed else None,
                "end": committed[at].end if at in committed else unread.get(at),
                "lag": committed[at].lag if at in committed else None,
                "client": readers.get(at),
            }
            for at in sorted(readers.keys() | committed.keys())
        ],
    }


def _state(name: str) -> str:
    """Kafka's spelling of a state in lower case words: preparing rebalance."""
    return name.replace("_", " ").lower()


def _members(count: int) -> str:
    return "no members" if count == 0 else f"{count} member{'' if count == 1 else 's'}"


def _joined(partitions: Iterable[dict[str, Any]]) -> str:
    """orders:0,1 bills:3."""
    by_topic: dict[str, list[str]] = {}
    for each in partitions:
        by_topic.setdefault(each["topic"], []).append(str(each["partition"]))
    return " ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items())


def _cell(value: object) -> object:
    return "-" if value is None else value
