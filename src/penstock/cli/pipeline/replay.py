"""`penstock pipeline replay`: sends archived records to a topic again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import command_config, require_listener
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import pairs, show_json, show_table
from penstock.cli.pipeline.options import (
    DEFAULT_MASTER,
    DEFAULT_MEMORY,
    Conf,
    Kafka,
    LakeAt,
    Master,
    Memory,
    SinceTime,
    Storage,
    UntilTime,
    location_of,
    spark_session,
    time_of,
)
from penstock.cli.pipeline.progress import ProgressLines, following, progress

if TYPE_CHECKING:
    from penstock.pipeline.replay.replay import Replay


def replay(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic whose archived records are replayed.")],
    lake: LakeAt,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Topic to send to.")],
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="Also send what is not archived yet, and set this group's offsets in TOPIC to continue after that.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable.")
    ] = None,
    from_offset: Annotated[int | None, typer.Option("--from-offset", min=0, help="First offset.")] = None,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="End offset, exclusive.")] = None,
    since: SinceTime = None,
    until: UntilTime = None,
    key: Annotated[list[str] | None, typer.Option("--key", "-k", help="Only this key; repeatable.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Only records with this tag; repeatable, any of them matches.")
    ] = None,
    biz_id: Annotated[list[str] | None, typer.Option("--biz-id", help="Only this business id; repeatable.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Replay name; default: derived from the options.")] = None,
    keep_time: Annotated[
        bool, typer.Option("--keep-time", help="Keep the original timestamps; retention applies to them.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the records; send nothing.")] = False,
    lines: ProgressLines = False,
    master: Master = DEFAULT_MASTER,
    memory: Memory = DEFAULT_MEMORY,
    conf: Conf = None,
    kafka: Kafka = None,
    storage: Storage = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Send archived records again, each exactly once even if you repeat the command; an interrupted replay resumes."""
    from penstock.pipeline.lake.delta import open_lake
    from penstock.pipeline.lake.selection import Selection

    selection = Selection(
        topic=topic,
        partitions=frozenset(partition) if partition else None,
        first=from_offset,
        end=to_offset,
        since_ms=_ms(since, "--since"),
        until_ms=_ms(until, "--until"),
        keys=frozenset(each.encode() for each in key) if key else None,
        tags=frozenset(tag) if tag else None,
        biz_ids=frozenset(biz_id) if biz_id else None,
    )
    if group is not None and selection != Selection(topic=topic, first=from_offset):
        raise typer.BadParameter(
            "--group cannot be combined with filters other than --from-offset", param_hint="--group"
        )
    at = bootstrap_of(context, bootstrap)
    opened = open_lake(location_of(lake, storage))
    if not dry_run:
        require_listener(at)
    with spark_session("penstock replay", master, memory, conf) as spark:
        from penstock.pipeline.replay.replay import Replay, ReplayOptions, replay_id_of
        from penstock.pipeline.workers import SparkWorkers

        settings = {"bootstrap.servers": at} | command_config(context) | pairs(kafka or (), "--kafka")
        name = id or replay_id_of(
            opened.location.uri, selection, to, group=group, keeps_time=keep_time, window=(since, until)
        )
        options = ReplayOptions(settings, selection, to, name, keep_time, group)
        planned = Replay(options, opened, SparkWorkers(spark.sparkContext))
        if dry_run:
            _show_counts(planned, json)
            return
        with _shown(planned, lines):
            rows = sum(each.rows for each in planned.run())
    if json:
        show_json({"id": planned.replay_id, "topic": topic, "to": to, "sent": rows})
    else:
        typer.echo(f"sent {rows} records of {topic} to {to} (replay {planned.replay_id})")
        if group is not None:
            typer.echo(
                f"the offsets of group {group} in {topic} are set: after reading {to} to its end, it continues there"
            )


def _show_counts(planned: Replay, json: bool) -> None:
    counts = planned.count()
    if json:
        partitions = [{"topic_id": each.topic_id, "partition": each.partition, "rows": each.rows} for each in counts]
        show_json({"id": planned.replay_id, "partitions": partitions, "rows": sum(each.rows for each in counts)})
    else:
        # The lake may have several topics of one name: topics that were deleted and created again.
        columns = ["partition", "records", "topic id"][: 3 if len({each.topic_id for each in counts}) > 1 else 2]
        rows = [(each.partition, each.rows, each.topic_id)[: len(columns)] for each in counts]
        show_table(columns, rows, right=["partition", "records"])
        typer.echo(f"{sum(each.rows for each in counts)} records would be sent, minus those sent before (--dry-run)")


@contextmanager
def _shown(planned: Replay, as_lines: bool) -> Iterator[None]:
    """Tells how far the replay is while it runs; brokers know."""
    from rich.console import Console

    if not as_lines and not Console(stderr=True).is_terminal:
        yield
        return
    with progress(as_lines) as tell, following(lambda: tell("offsets", *planned.progress())):
        yield


def _ms(text: str | None, option: str) -> int | None:
    moment = time_of(text, option)
    return None if moment is None else int(moment.timestamp() * 1000)
