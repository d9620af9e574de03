"""`penstock topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import cluster_of, failing_as
from penstock.cli.failure import CommandError
from penstock.cli.formats import time_text
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import pairs, show_json, show_table
from penstock.cli.prompts import confirm, report_deletion
from penstock.cli.topic.replicas import COLUMNS, as_json, cells, parse_assignment
from penstock.cluster.metadata import INTERNAL_TOPICS
from penstock.config.topic import topic_setting
from penstock.config.view import VIEW_OF_SETTING, VIEW_TAGS_SETTING, parse_tags
from penstock.errors import Code

if TYPE_CHECKING:
    from penstock.admin import (
        AdminError,
        Cluster,
        LogSegment,
        PartitionOffsets,
        ReplicaLog,
        RetiredPartitions,
        TopicDescription,
    )

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Topic name.")]
_MAX_FACTOR = 2**15 - 1
"""What the protocol has room for."""

_SEGMENT_COLUMNS = ("first", "end", "bytes", "oldest", "newest")
_SEGMENT_NUMBERS = ("first", "end", "bytes")

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Topic names.")]


@app.command()
def create(
    context: typer.Context,
    name: Name,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Number of partitions; default: the broker's.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", min=1, max=_MAX_FACTOR, help="Replicas per partition; default: the broker's."
        ),
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            "--replica-assignment",
            metavar="1:2,2:3",
            help="Brokers of each partition, preferred leader first; replaces the two options above.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Topic setting; repeatable."),
    ] = None,
    view_of: Annotated[
        str | None,
        typer.Option("--view-of", metavar="TOPIC", help="Create a view of this topic; needs --tags."),
    ] = None,
    tags: Annotated[
        str | None,
        typer.Option("--tags", metavar="EXPRESSION", help="Tags that the view shows: a,b or 'a and not (b or c)'."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Create a topic, or a view of a topic."""
    settings = pairs(config or (), "--config") | _view_settings(view_of, tags)
    placed = None if replica_assignment is None else parse_assignment(replica_assignment)
    if placed is not None and not (partitions is None and replication_factor is None):
        raise typer.BadParameter("--replica-assignment cannot be combined with --partitions or --replication-factor")
    if name in INTERNAL_TOPICS:
        raise CommandError(f"topic {name} is internal: brokers create it when they need it; nothing was created")
    cluster = cluster_of(context, bootstrap)
    from penstock.admin import NewTopic

    wanted = NewTopic(
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        replica_assignment=placed,
        configs=settings,
    )
    with failing_as(f"topic {name} was not created"):
        done = cluster.topics.create([wanted])
    error = done.errors.get(name)
    if error is not None and (error.code != Code.TOPIC_ALREADY_EXISTS.name or not if_not_exists):
        raise _why_not_created(cluster, name, error)
    made = cluster.topics.describe([name])[name] if error is not None else done[name]
    if json:
        factor, count = made.replication_factor, len(made.partitions)
        show_json({"topic": name, "created": error is None, "partitions": count, "replication_factor": factor})
    else:
        typer.echo(f"{'created topic' if error is None else 'topic exists already:'} {name} with {_size(made)}")


def _why_not_created(cluster: Cluster, name: str, error: AdminError) -> CommandError:
    if error.code == Code.TOPIC_ALREADY_EXISTS.name:
        existing = _size(cluster.topics.describe([name])[name])
        return CommandError(f"topic {name} already exists ({existing}); nothing was changed")
    reason = error.message.rstrip(".")
    if error.code == Code.INVALID_REPLICATION_FACTOR.name:
        alive = ", ".join(str(broker.id) for broker in cluster.brokers.list() if broker.address is not None)
        reason += f"; alive are {alive}: ask for fewer replicas, or start more brokers"
    return CommandError(f"topic {name} was not created: {reason}")


def _view_settings(view_of: str | None, tags: str | None) -> dict[str, str]:
    if (view_of is None) != (tags is None):
        raise typer.BadParameter("a view needs both --view-of and --tags")
    if view_of is None or tags is None:
        return {}
    try:
        parse_tags(tags)
    except ValueError as error:
        raise typer.BadParameter(f"expected {error}", param_hint="--tags") from None
    return {VIEW_OF_SETTING: view_of, VIEW_TAGS_SETTING: tags}


@app.command("list")
def list_(
    context: typer.Context,
    internal: Annotated[bool, typer.Option("--internal", help="Include the brokers' internal topics.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """List topics."""
    topics = cluster_of(context, bootstrap).topics.list(include_internal=internal)
    found = [(topic.name, len(topic.partitions)) for topic in topics]
    if json:
        show_json([{"topic": name, "partitions": count} for name, count in found])
    elif found:
        show_table(("topic", "partitions"), found, right=("partitions",))
    else:
        typer.echo("no topics; create one with: penstock topic create NAME", err=True)


@app.command()
def describe(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Topic names.")] = None,
    under_replicated: Annotated[
        bool,
        typer.Option("--under-replicated-partitions", help="Only partitions with a replica out of sync."),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only partitions without a leader.")
    ] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Show partitions with their replicas and offsets, and the settings that are not defaults.

    With --under-replicated-partitions or --unavailable-partitions, show only those partitions, of all topics unless
    some are named.
    """
    if not names and not (under_replicated or unavailable):
        raise typer.BadParameter("name a topic, or search all topics with --under-replicated-partitions")
    cluster = cluster_of(context, bootstrap)
    if under_replicated or unavailable:
        every = cluster.topics.describe(names).all().values() if names else cluster.topics.list(include_internal=True)
        _show_troubled(every, json, under_replicated=under_replicated, unavailable=unavailable)
        return
    topics = cluster.topics.describe(names or ()).all().values()
    described = [_described(cluster, topic) for topic in topics]
    if json:
        show_json([each for _, each in described])
        return
    for number, (topic, each) in enumerate(described):
        if number:
            typer.echo()
        _show_described(topic, each)


def _show_described(topic: TopicDescription, described: dict[str, Any]) -> None:
    typer.echo(f"topic {topic.name}: {_size(topic)}")
    columns = ("earliest", "latest", "records")
    rows = [
        (*cells(partition), *("-" if each[column] is None else each[column] for column in columns))
        for partition, each in zip(topic.partitions, described["partitions"], strict=True)
    ]
    show_table((*COLUMNS, *columns), rows, right=("partition", "leader", *columns))
    for partition, each in zip(topic.partitions, described["partitions"], strict=True):
        if each["error"] is not None and not partition.is_unavailable:
            typer.echo(f"partition {partition.index}: offsets are unknown: {each['error']}")
        if each["successor"] is not None:
            unread = f"; unread by {', '.join(each['behind'])}" if each["behind"] else ""
            typer.echo(f"partition {partition.index} is retired: new messages go to {each['successor']}{unread}")
    if described["settings"]:
        typer.echo()
        settings = [(each["key"], each["value"], each["origin"]) for each in described["settings"]]
        show_table(("setting", "value", "set on"), settings)
    else:
        typer.echo("all settings are defaults")


def _show_troubled(
    topics: Iterable[TopicDescription], json: bool, *, under_replicated: bool, unavailable: bool
) -> None:
    """From metadata alone: brokers in trouble must not hold this up."""
    found = [
        (topic.name, partition)
        for topic in topics
        for partition in topic.partitions
        if (under_replicated and partition.is_under_replicated) or (unavailable and partition.is_unavailable)
    ]
    if json:
        show_json([{"topic": name, "partition": each.index, **as_json(each)} for name, each in found])
    elif found:
        show_table(("topic", *COLUMNS), [(name, *cells(each)) for name, each in found], right=("partition", "leader"))
    else:
        kinds = {"under-replicated": under_replicated, "unavailable": unavailable}
        typer.echo(f"no partition is {' or '.join(kind for kind, asked in kinds.items() if asked)}")


def _described(cluster: Cluster, topic: TopicDescription) -> tuple[TopicDescription, dict[str, Any]]:
    with failing_as(f"topic {topic.name} cannot be described"):
        settings = cluster.topics.configs([topic.name])[topic.name].values()
        partitions = cluster.topics.partitions(topic.name, limit=len(topic.partitions)).items
        retirement = cluster.retirement.describe(topic.name)
    return topic, {
        "topic": topic.name,
        "partitions": [_partition(each, retirement) for each in partitions],
        "settings": [
            {"key": entry.name, "value": entry.value, "origin": "topic" if entry.is_topic_override else "broker"}
            for entry in settings
            if not entry.is_default
        ],
    }


def _partition(found: PartitionOffsets, retirement: RetiredPartitions) -> dict[str, Any]:
    index = found.partition.index
    return {
        "partition": index,
        **as_json(found.partition),
        "error": None if found.error is None else found.error.message,
        "earliest": found.start,
        "latest": found.end,
        # Offsets, not records: compaction and transactions leave gaps.
        "records": None if found.start is None or found.end is None else found.end - found.start,
        "successor": retirement.successors.get(index),
        "behind": list(retirement.unread_by.get(index, ())),
    }


@app.command()
def segments(
    context: typer.Context,
    name: Name,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Show each segment of this partition.")
    ] = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Show the log of each replica: its segments, offsets, size and age.

    In a database a segment is a range of rows. Sizes include delayed messages, which have segments of their own.
    """
    cluster = cluster_of(context, bootstrap)
    wanted = cluster.topics.describe([name])[name].topic_partitions
    if partition is not None:
        if partition >= len(wanted):
            raise CommandError(f"topic {name} has no partition {partition}: the last is {len(wanted) - 1}")
        wanted = [wanted[partition]]
    told = cluster.log_dirs.segments(wanted)
    found = sorted(
        ((log, broker) for broker, logs in told.values.items() for log in logs),
        key=lambda each: (each[0].partition, each[1]),
    )
    if json:
        show_json([_log_json(log, broker) for log, broker in found])
    elif partition is None:
        show_table(
            ("partition", "broker", "segments", *_SEGMENT_COLUMNS),
            [(log.partition.partition, broker, len(log.segments), *_log_cells(log)) for log, broker in found],
            right=("partition", "broker", "segments", *_SEGMENT_NUMBERS),
        )
    else:
        show_table(
            ("broker", *_SEGMENT_COLUMNS),
            [(broker, *_segment_cells(each)) for log, broker in found for each in log.segments],
            right=("broker", *_SEGMENT_NUMBERS),
        )
    for id, error in told.errors.items():
        typer.echo(f"broker {id} does not list its segments: {error.message}", err=True)


def _log_json(log: ReplicaLog, broker: int) -> dict[str, Any]:
    return {
        "partition": log.partition.partition,
        "broker": broker,
        "bytes": log.size_bytes,
        "segments": [
            {
                "base_offset": each.base_offset,
                "end_offset": each.end_offset,
                "bytes": each.size_bytes,
                "first_ms": each.first_ms,
                "newest_ms": each.newest_ms,
            }
            for each in log.segments
        ],
    }


def _log_cells(log: ReplicaLog) -> tuple[object, ...]:
    if not log.segments:
        return ("-", "-", log.size_bytes, "-", "-")
    first = next((each.first_ms for each in log.segments if each.first_ms is not None), None)
    newest = max((each.newest_ms for each in log.segments if each.newest_ms is not None), default=None)
    ends = (log.segments[0].base_offset, log.segments[-1].end_offset)
    return (*ends, log.size_bytes, time_text(first), time_text(newest))


def _segment_cells(segment: LogSegment) -> tuple[object, ...]:
    ends = (segment.base_offset, segment.end_offset)
    return (*ends, segment.size_bytes, time_text(segment.first_ms), time_text(segment.newest_ms))


@app.command()
def alter(
    context: typer.Context,
    name: Name,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; repeatable.")
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Reset a setting to its default; repeatable."),
    ] = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Change a topic's settings; settings that are not named stay as they are."""
    changes: dict[str, str | None] = dict(pairs(set_ or (), "--set"))
    for key in unset or ():
        if key in changes:
            raise typer.BadParameter(f"{key} is given twice", param_hint="--unset")
        topic_setting(key)  # the broker accepts resetting a setting that does not exist
        changes[key] = None
    if not changes:
        raise typer.BadParameter("nothing to change: give --set or --unset")
    cluster = cluster_of(context, bootstrap)
    from penstock.admin import ConfigChange, ConfigResource

    resource = ConfigResource.topic(name)
    wanted = [
        ConfigChange.delete(key) if value is None else ConfigChange.set(key, value) for key, value in changes.items()
    ]
    cluster.topics.describe([name]).all()
    with failing_as(f"topic {name} was not changed"):
        cluster.configs.alter({resource: wanted}).all()
    if json:
        show_json({"topic": name, "changed": changes})
        return
    for key, value in changes.items():
        typer.echo(f"{name}: {key} {'is reset to its default' if value is None else f'= {value}'}")


@app.command()
def delete(
    context: typer.Context,
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Delete topics and all their records."""
    cluster = cluster_of(context, bootstrap)
    wanted = list(dict.fromkeys(names))
    if not yes:
        confirm(f"Delete {', '.join(wanted)} and all {'its' if len(wanted) == 1 else 'their'} records?")
    report_deletion("topic", cluster.topics.delete(wanted), json)


@app.command("add-partitions")
def add_partitions(
    context: typer.Context,
    name: Name,
    total: Annotated[int | None, typer.Option(min=1, help="New total number of partitions.")] = None,
    add: Annotated[int | None, typer.Option(min=1, help="Number of partitions to add.")] = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Add partitions to a topic. Keys may map to other partitions afterwards."""
    if (total is None) == (add is None):
        raise typer.BadParameter("give either --total or --add")
    cluster = cluster_of(context, bootstrap)
    before = len(cluster.topics.describe([name])[name].partitions)
    wanted = total if total is not None else before + (add or 0)
    with failing_as(f"topic {name} got no new partitions"):
        cluster.topics.add_partitions({name: wanted}).all()
    if json:
        show_json({"topic": name, "before": before, "partitions": wanted})
    else:
        typer.echo(f"topic {name} has {_partitions(wanted)} now, {before} before")


@app.command("retire-partitions")
def retire_partitions(
    context: typer.Context,
    name: Name,
    partitions: Annotated[
        str, typer.Option("--partitions", metavar="3,4", help="The topic's last partitions, separated by commas.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Retire partitions: they take no new messages, and brokers remove them once they are read and expired."""
    wanted = _parse_partitions(partitions)
    cluster = cluster_of(context, bootstrap)
    with failing_as(f"no partition of topic {name} was retired"):
        successors = cluster.retirement.retire(name, wanted, validate_only=dry_run)
    if json:
        chosen = {str(index): successors[index] for index in wanted}
        show_json({"topic": name, "retired": chosen, "dry_run": dry_run})
        return
    for index in wanted:
        verb = "would go" if dry_run else "go"
        typer.echo(f"{name}: new messages for partition {index} {verb} to partition {successors[index]}")
    if not dry_run:
        them = "its records" if len(wanted) == 1 else "their records"
        typer.echo(f"consumers still read {them}; see: penstock topic describe {name}")


def _parse_partitions(text: str) -> list[int]:
    """`3,4` as numbers."""
    items = [item.strip() for item in text.split(",")]
    if not all(item.isascii() and item.isdigit() for item in items):
        raise typer.BadParameter(f"{text!r} is not a list of partitions such as 3,4", param_hint="--partitions")
    return sorted(set(map(int, items)))


def _size(topic: TopicDescription) -> str:
    factor = topic.replication_factor
    replicas = f", {factor} replicas each" if factor > 1 else ""
    return f"{_partitions(len(topic.partitions))}{replicas}"


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
