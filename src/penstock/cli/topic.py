"""`penstock topic`: create, list, describe, alter and delete topics, through Kafka's admin calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import topic_retiring
from penstock.cli.client import TIMEOUT_S, admin, metadata, reason_of, saying, topic_of
from penstock.cli.deletion import confirm, report_deletion
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import pairs, show_json, show_table
from penstock.config.topic import topic_setting
from penstock.config.view import VIEW_OF_SETTING, VIEW_TAGS_SETTING, parse_tags

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, TopicMetadata

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Names of topics.")]


@app.command()
def create(
    context: typer.Context,
    name: Name,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="How many; else the broker decides.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting of the topic; repeatable."),
    ] = None,
    view_of: Annotated[
        str | None,
        typer.Option("--view-of", metavar="TOPIC", help="Make a view: a topic that shows records of this one."),
    ] = None,
    tags: Annotated[
        str | None,
        typer.Option("--tags", metavar="EXPRESSION", help="What a view shows: a,b or 'a and not (b or c)'."),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Be content if it is there already.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Create a topic, or a view of one."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    settings = pairs(config or (), "--config") | _view_settings(view_of, tags)
    at = bootstrap_of(context, bootstrap)
    client = admin(at)
    metadata(client, at)
    # -1 leaves the choice to the broker, whose defaults may differ from ours.
    new = NewTopic(name, num_partitions=partitions or -1, replication_factor=-1, config=settings)
    created = True
    try:
        client.create_topics([new], request_timeout=TIMEOUT_S)[name].result()
    except KafkaException as error:
        if not (if_not_exists and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS):
            raise CommandError(f"topic {name} was not created: {reason_of(error)}") from None
        created = False
    except ValueError as error:
        # The client library refuses some numbers itself.
        raise CommandError(f"topic {name} was not created: {error}") from None
    count = len(topic_of(metadata(client, at), name).partitions)
    if json:
        show_json({"topic": name, "created": created, "partitions": count})
    else:
        typer.echo(f"{'created' if created else 'there is already'} topic {name} with {_partitions(count)}")


def _view_settings(view_of: str | None, tags: str | None) -> dict[str, str]:
    if (view_of is None) != (tags is None):
        raise typer.BadParameter("a view needs both --view-of and --tags")
    if view_of is None or tags is None:
        return {}
    try:
        parse_tags(tags)
    except ValueError as error:
        raise typer.BadParameter(f"allowed is {error}", param_hint="--tags") from None
    return {VIEW_OF_SETTING: view_of, VIEW_TAGS_SETTING: tags}


@app.command("list")
def list_(
    context: typer.Context,
    internal: Annotated[bool, typer.Option("--internal", help="Show the broker's own topics too.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """List topics."""
    at = bootstrap_of(context, bootstrap)
    topics = metadata(admin(at), at).topics
    found = [
        (name, len(topic.partitions)) for name, topic in sorted(topics.items()) if internal or not name.startswith("__")
    ]
    if json:
        show_json([{"topic": name, "partitions": count} for name, count in found])
    elif found:
        show_table(("topic", "partitions"), found, right=("partitions",))
    else:
        typer.echo("no topics; create one with: penstock topic create NAME", err=True)


@app.command()
def describe(context: typer.Context, names: Names, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Show partitions with their offsets, and the settings that differ from the default."""
    at = bootstrap_of(context, bootstrap)
    client = admin(at)
    cluster = metadata(client, at)
    described = [_described(client, name, topic_of(cluster, name)) for name in dict.fromkeys(names)]
    if json:
        show_json(described)
        return
    for number, topic in enumerate(described):
        if number:
            typer.echo()
        typer.echo(f"topic {topic['topic']}: {_partitions(len(topic['partitions']))}")
        columns = ("partition", "leader", "earliest", "latest", "records")
        rows = [[each[column] for column in columns] for each in topic["partitions"]]
        show_table(columns, rows, right=columns)
        for each in topic["partitions"]:
            if each["successor"] is not None:
                waiting = f"; not read to the end by {', '.join(each['behind'])}" if each["behind"] else ""
                retired = f"partition {each['partition']} is retired: new messages go to {each['successor']}{waiting}"
                typer.echo(retired)
        if topic["settings"]:
            typer.echo()
            settings = [(each["key"], each["value"], each["origin"]) for each in topic["settings"]]
            show_table(("setting", "value", "set on"), settings)
        else:
            typer.echo("all settings have their default")


def _described(client: AdminClient, name: str, topic: TopicMetadata) -> dict[str, Any]:
    from confluent_kafka.admin import OffsetSpec

    with saying(f"topic {name} cannot be described"):
        earliest = _offsets(client, name, topic, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        latest = _offsets(client, name, topic, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        settings = _settings(client, name)
    successors = topic_retiring.retired_of(client, name)
    behind = topic_retiring.behind(client, name, {index: latest[index] for index in successors if index in latest})
    partitions = [
        {
            "partition": number,
            "leader": topic.partitions[number].leader,
            "earliest": earliest[number],
            "latest": latest[number],
            # Offsets between the ends: compaction may have taken some of the records away.
            "records": latest[number] - earliest[number],
            # Who takes new messages in its place, and which groups it is kept for.
            "successor": successors.get(number),
            "behind": behind.get(number, []),
        }
        for number in sorted(topic.partitions)
    ]
    return {"topic": name, "partitions": partitions, "settings": settings}


def _offsets(client: AdminClient, name: str, topic: TopicMetadata, which: Any) -> dict[int, int]:
    from confluent_kafka import TopicPartition

    from penstock.sdk.positions import positions

    asked = {TopicPartition(name, number): which for number in topic.partitions}
    return {place.partition: offset for place, offset in positions(client, asked, TIMEOUT_S).all().items()}


def _settings(client: AdminClient, name: str) -> list[dict[str, str]]:
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = client.describe_configs([resource], request_timeout=TIMEOUT_S)[resource].result()
    origins = {ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic"}
    return [
        {"key": key, "value": entry.value, "origin": origins.get(entry.source, "broker")}
        for key, entry in sorted(entries.items())
        if entry.source != ConfigSource.DEFAULT_CONFIG.value
    ]


@app.command()
def alter(
    context: typer.Context,
    name: Name,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a setting; repeatable.")
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Return a setting to its default; repeatable."),
    ] = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Change a topic's settings; the ones not named stay as they are."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    changes: dict[str, str | None] = dict(pairs(set_ or (), "--set"))
    for key in unset or ():
        if key in changes:
            raise typer.BadParameter(f"{key} is given twice", param_hint="--unset")
        topic_setting(key)  # a name that does not exist would be taken for one that was never set
        changes[key] = None
    if not changes:
        raise typer.BadParameter("nothing to change: give --set or --unset")
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        if value is not None
        else ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)
        for key, value in changes.items()
    ]
    at = bootstrap_of(context, bootstrap)
    client = admin(at)
    topic_of(metadata(client, at), name)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    with saying(f"topic {name} was not changed"):
        client.incremental_alter_configs([resource], request_timeout=TIMEOUT_S)[resource].result()
    if json:
        show_json({"topic": name, "changed": changes})
        return
    for key, value in changes.items():
        typer.echo(f"{name}: {key} {'is back to its default' if value is None else f'= {value}'}")


@app.command()
def delete(
    context: typer.Context,
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Delete topics and everything in them."""
    at = bootstrap_of(context, bootstrap)
    client = admin(at)
    metadata(client, at)
    wanted = list(dict.fromkeys(names))
    if not yes:
        confirm(f"Delete {', '.join(wanted)} and all records in {'it' if len(wanted) == 1 else 'them'}?")
    report_deletion("topic", client.delete_topics(wanted, request_timeout=TIMEOUT_S), _why_not_deleted, json)


def _why_not_deleted(error: BaseException) -> str:
    from confluent_kafka import KafkaError

    # The client library does not ask for the broker's own words here.
    has_views = error.args and getattr(error.args[0], "code", lambda: 0)() == KafkaError.POLICY_VIOLATION
    return "it has views; delete them first, or together with it" if has_views else reason_of(error)


@app.command("add-partitions")
def add_partitions(
    context: typer.Context,
    name: Name,
    total: Annotated[int | None, typer.Option(min=1, help="How many there shall be.")] = None,
    add: Annotated[int | None, typer.Option(min=1, help="How many more there shall be.")] = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Give a topic more partitions. Keys may land elsewhere than before."""
    from confluent_kafka.admin import NewPartitions

    if (total is None) == (add is None):
        raise typer.BadParameter("give either --total or --add")
    at = bootstrap_of(context, bootstrap)
    client = admin(at)
    before = len(topic_of(metadata(client, at), name).partitions)
    wanted = total if total is not None else before + (add or 0)
    with saying(f"topic {name} got no new partitions"):
        client.create_partitions([NewPartitions(name, wanted)], request_timeout=TIMEOUT_S)[name].result()
    if json:
        show_json({"topic": name, "before": before, "partitions": wanted})
    else:
        typer.echo(f"topic {name} has {_partitions(wanted)}, before it had {before}")


@app.command("retire-partitions")
def retire_partitions(
    context: typer.Context,
    name: Name,
    partitions: Annotated[
        str, typer.Option("--partitions", metavar="3,4", help="The last ones of the topic, separated by commas.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Let partitions run out: they take no new messages, and go when they have been read and their time is over."""
    wanted = topic_retiring.parse_partitions(partitions)
    at = bootstrap_of(context, bootstrap)
    client = admin(at)
    topic = topic_of(metadata(client, at), name)
    before = topic_retiring.retired_of(client, name)
    successors = topic_retiring.planned(topic, before, wanted)
    topic_retiring.put_retired(client, name, successors, only_check=dry_run)
    if json:
        chosen = {str(index): successors[index] for index in wanted}
        show_json({"topic": name, "retired": chosen, "dry_run": dry_run})
        return
    for index in wanted:
        verb = "would go" if dry_run else "go"
        typer.echo(f"{name}: new messages for partition {index} {verb} to partition {successors[index]}")
    if not dry_run:
        typer.echo(
            f"what is in {'it' if len(wanted) == 1 else 'them'} can be read as before; see: topic describe {name}"
        )


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
