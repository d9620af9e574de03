"""`penstock group`: list, describe and delete consumer groups, and set their offsets back."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import group_pause
from penstock.cli.client import TIMEOUT_S, admin, metadata, reason_of, saying, topic_of
from penstock.cli.deletion import confirm, report_deletion
from penstock.cli.failure import CommandError
from penstock.cli.group_offsets import (
    Place,
    Shift,
    Target,
    alter,
    committed,
    new_offset,
    parse_places,
    since,
    spans,
)
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import show_json, show_table
from penstock.cli.positions import At, Beginning, End, Since, parse_position
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

app = typer.Typer(
    no_args_is_help=True, help="List, describe and delete consumer groups, set their offsets back, pause them."
)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
Names = Annotated[list[str], typer.Argument(metavar="GROUP", help="Names of groups.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; repeatable.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_DEAD = "DEAD"


@app.command("list")
def list_(context: typer.Context, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """List groups with their state, and what is paused of them."""
    client = _client(bootstrap_of(context, bootstrap))
    found = sorted(_states(client).items())
    pauses = group_pause.pauses(client, (name for name, _ in found))
    if json:
        show_json([{"group": name, "state": state, **_pause_fields(pauses[name])} for name, state in found])
    elif found:
        show_table(("group", "state", "paused"), [(name, state, pauses[name]) for name, state in found])
    else:
        typer.echo("no groups; one appears when a consumer joins it or commits under its name", err=True)


@app.command()
def describe(context: typer.Context, names: Names, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Show members with their partitions, and per partition the committed offset, the end and the lag."""
    client = _client(bootstrap_of(context, bootstrap))
    described = [_described(client, name) for name in dict.fromkeys(names)]
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
            typer.echo(f"lag of all: {sum(lags)}")
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
    """Delete groups without members, with their offsets."""
    client = _client(bootstrap_of(context, bootstrap))
    wanted = list(dict.fromkeys(names))
    if not yes:
        confirm(f"Delete {', '.join(wanted)} with all committed offsets?")
    report_deletion("group", client.delete_consumer_groups(wanted, request_timeout=TIMEOUT_S), _why, json)


@app.command()
def reset(
    context: typer.Context,
    name: Name,
    to_offset: Annotated[int | None, typer.Option(min=0, help="To this offset.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record kept.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: only what comes next.")] = False,
    to_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="To a time such as 2026-03-01T12:00:00Z or '10m ago'."),
    ] = None,
    shift_by: Annotated[int | None, typer.Option(metavar="N", help="So many further, or back if negative.")] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC[:P,P]", help="Only these partitions; else all that have a committed offset."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Set the offsets of a group; members that run are put out, come back and go on from there."""
    targets: list[Target] = [
        *([At(to_offset)] if to_offset is not None else []),
        *([Beginning()] if to_earliest else []),
        *([End()] if to_latest else []),
        *([_time(to_time)] if to_time is not None else []),
        *([Shift(shift_by)] if shift_by is not None else []),
    ]
    if len(targets) != 1:
        raise typer.BadParameter("give one of --to-offset, --to-earliest, --to-latest, --to-time, --shift-by")
    at = bootstrap_of(context, bootstrap)
    client = _client(at)
    found = _found(client, name)
    members = 0 if found is None else len(found.members)
    before = committed(client, name)
    places = parse_places(topic, metadata(client, at)) if topic else list(before)
    if not places:
        raise CommandError(f"group {name} has no committed offsets: name the partitions with --topic")
    after = _targets(client, targets[0], places, before)
    if not dry_run:
        if members and not yes:
            confirm(f"Group {name} has {_members(members)}. Put them out, so that they go on from the new offsets?")
        alter(client, name, after)
    _show_reset(name, before, after, members=members, dry_run=dry_run, json=json)


@app.command()
def pause(
    context: typer.Context, name: Name, topic: Topics = None, bootstrap: Bootstrap = None, json: Json = False
) -> None:
    """Let a group receive nothing, or nothing of some topics; its members stay joined."""
    at = bootstrap_of(context, bootstrap)
    client = _client(at)
    cluster = metadata(client, at)
    topics = [found.topic for found in (topic_of(cluster, each) for each in topic or ()) if found.topic is not None]
    if _found(client, name) is None:
        typer.echo(f"there is no group {name} yet: the pause waits for it", err=True)
    group_pause.pause(client, name, topics)
    _show_pause(client, name, json=json)


@app.command()
def resume(
    context: typer.Context, name: Name, topic: Topics = None, bootstrap: Bootstrap = None, json: Json = False
) -> None:
    """Let a paused group go on, wholly or with some topics."""
    client = _client(bootstrap_of(context, bootstrap))
    before = group_pause.pauses(client, [name])[name]
    if not before:
        if _found(client, name) is None:
            raise _no_group(client, name)
        raise CommandError(f"group {name} is not paused")
    if topic and before.is_all:
        raise CommandError(f"group {name} is paused as a whole: resume it without --topic")
    for each in topic or ():
        if each not in before.topics:
            raise CommandError(f"topic {each} of group {name} is not paused; these are: {before}")
    group_pause.resume(client, name, topic or ())
    _show_pause(client, name, json=json)


def _show_pause(client: AdminClient, name: str, *, json: bool) -> None:
    paused = group_pause.pauses(client, [name])[name]
    if json:
        show_json({"group": name, **_pause_fields(paused)})
    elif not paused:
        typer.echo(f"group {name} receives everything")
    else:
        typer.echo(f"group {name} receives nothing{'' if paused.is_all else f' of {paused}'}")


def _pause_fields(paused: group_pause.Paused) -> dict[str, Any]:
    return {"paused": paused.is_all, "paused_topics": list(paused.topics)}


def _targets(client: AdminClient, target: Target, places: list[Place], before: dict[Place, int]) -> dict[Place, int]:
    held = spans(client, places)
    times = since(client, places, target.time_ms) if isinstance(target, Since) else {}
    after = {}
    for place in places:
        if place not in held:
            raise CommandError(f"there is no {place.topic}-{place.partition}: name the partitions with --topic")
        try:
            after[place] = new_offset(target, before.get(place), held[place], times.get(place))
        except ValueError as error:
            raise CommandError(f"{place.topic}-{place.partition} {error}") from None
    return after


def _show_reset(
    name: str, before: dict[Place, int], after: dict[Place, int], *, members: int, dry_run: bool, json: bool
) -> None:
    rows = [(place.topic, place.partition, before.get(place), offset) for place, offset in after.items()]
    if json:
        columns = ("topic", "partition", "before", "after")
        changes = [dict(zip(columns, row, strict=True)) for row in rows]
        fenced = 0 if dry_run else members
        show_json({"group": name, "changed": not dry_run, "fenced": fenced, "offsets": changes})
        return
    columns = ("topic", "partition", "before", "after")
    show_table(columns, [tuple(_cell(cell) for cell in row) for row in rows], right=columns[1:])
    if dry_run:
        would = f"; {_members(members)} would be fenced" if members else ""
        typer.echo(f"nothing was changed{would}")
    elif members:
        typer.echo(f"{_members(members)} fenced: group {name} goes on from there when they are back")
    else:
        typer.echo(f"group {name} goes on from there")


def _client(at: str) -> AdminClient:
    client = admin(at)
    metadata(client, at)
    return client


def _states(client: AdminClient) -> dict[str, str]:
    with saying("groups cannot be listed"):
        listed = client.list_consumer_groups(request_timeout=TIMEOUT_S).result()
    return {group.group_id: _state(group.state.name) for group in listed.valid}


def _found(client: AdminClient, name: str) -> ConsumerGroupDescription | None:
    from confluent_kafka import KafkaError, KafkaException

    try:
        found = client.describe_consumer_groups([name], request_timeout=TIMEOUT_S)[name].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise CommandError(f"group {name} cannot be described: {reason_of(error)}") from None
    return None if found.state.name == _DEAD else found


def _described(client: AdminClient, name: str) -> dict[str, Any]:
    found = _found(client, name)
    paused = group_pause.pauses(client, [name])[name]
    if found is None:
        raise CommandError(f"there is no group {name} yet; it is paused") if paused else _no_group(client, name)
    members: list[dict[str, Any]] = [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.host.removeprefix("/"),
            "instance": member.group_instance_id or "",
            "partitions": _places_of(member),
        }
        for member in found.members
    ]
    readers = {
        Place(each["topic"], each["partition"]): member["client"] for member in members for each in member["partitions"]
    }
    offsets = committed(client, name)
    places = sorted(readers.keys() | offsets.keys())
    ends = {place: span.high for place, span in spans(client, places).items()}
    return {
        "group": name,
        "state": _state(found.state.name),
        "assignor": found.partition_assignor,
        **_pause_fields(paused),
        "members": members,
        "offsets": [_offset(place, offsets.get(place), ends.get(place), readers.get(place)) for place in places],
    }


def _offset(place: Place, offset: int | None, end: int | None, reader: str | None) -> dict[str, Any]:
    return {
        "topic": place.topic,
        "partition": place.partition,
        "committed": offset,
        "end": end,
        "lag": None if offset is None or end is None else max(0, end - offset),
        "client": reader,
    }


def _places_of(member: Any) -> list[dict[str, Any]]:
    assigned = member.assignment.topic_partitions if member.assignment is not None else ()
    places = sorted(Place(found.topic, found.partition) for found in assigned)
    return [place._asdict() for place in places]


def _no_group(client: AdminClient, name: str) -> CommandError:
    close = difflib.get_close_matches(name, _states(client), n=1)
    return CommandError(f"there is no group {name}{f'; did you mean {close[0]}?' if close else ''}")


def _time(text: str) -> Since:
    try:
        position = parse_position(text, SystemClock().now_ms())
    except ValueError:
        position = None
    if not isinstance(position, Since):
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-03-01T12:00:00Z or '10m ago'")
    return position


def _why(error: BaseException) -> str:
    from confluent_kafka import KafkaError

    code = error.args[0].code()
    if code == KafkaError.NON_EMPTY_GROUP:
        return "it has members; stop them first"
    return "there is no such group" if code == KafkaError.GROUP_ID_NOT_FOUND else reason_of(error)


def _state(name: str) -> str:
    """Kafka's spelling of a state in lower case words: preparing rebalance."""
    return name.replace("_", " ").lower()


def _members(count: int) -> str:
    return "no members" if count == 0 else f"{count} member{'' if count == 1 else 's'}"


def _joined(places: Iterable[dict[str, Any]]) -> str:
    """orders:0,1 bills:3."""
    by_topic: dict[str, list[str]] = {}
    for place in places:
        by_topic.setdefault(place["topic"], []).append(str(place["partition"]))
    return " ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items())


def _cell(value: object) -> object:
    return "-" if value is None else value
