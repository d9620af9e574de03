"""`penstock pipeline`: archives topics into a lake, and maintains the lake. Spark is loaded when a command runs."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import command_config, require_listener
from penstock.cli.interrupt import watch
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import pairs, show_json
from penstock.cli.pipeline.options import (
    DEFAULT_MASTER,
    DEFAULT_MEMORY,
    Conf,
    Kafka,
    LakeAt,
    Master,
    Memory,
    Pattern,
    Storage,
    Topics,
    location_of,
    spark_session,
    subscription_of,
)
from penstock.cli.pipeline.replay import replay
from penstock.cli.pipeline.report import report
from penstock.cli.pipeline.sql import sql
from penstock.cli.serve.child import dying_with

if TYPE_CHECKING:
    from penstock.pipeline.archive.archiver import Archiver, Batch

_HELP = "Archive topics into a lake on Spark; query, replay and report on them."
app = typer.Typer(no_args_is_help=True, help=_HELP)
app.command()(replay)
app.command()(sql)
app.command()(report)

_LOOK_S = 0.2
_LEAST_VACUUM_HOURS = 24


@app.callback(help=_HELP)
def _pipeline(
    supervised: Annotated[int | None, typer.Option("--supervised", metavar="PID", hidden=True)] = None,
) -> None:
    """`--supervised` is for the console: the command ends with the process that has started it."""
    if supervised is not None:
        dying_with(supervised)()


@app.command()
def archive(
    context: typer.Context,
    lake: LakeAt,
    topics: Topics = None,
    pattern: Pattern = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when everything up to the current end is archived.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between polls when there is nothing to archive.")
    ] = 10.0,
    name: Annotated[str, typer.Option(help="Archiver name; only one archiver of a name runs at a time.")] = "archive",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Replace a running archiver of the same name.")
    ] = False,
    hold: Annotated[bool, typer.Option("--hold", help="Have brokers keep records until they are archived.")] = False,
    max_offsets: Annotated[
        int, typer.Option(min=1, help="Maximum offsets per batch; batches shrink if they take long.")
    ] = 4_000_000,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Skip records that were deleted before they were archived.")
    ] = False,
    master: Master = DEFAULT_MASTER,
    memory: Memory = DEFAULT_MEMORY,
    conf: Conf = None,
    kafka: Kafka = None,
    storage: Storage = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Archive topics into a lake continuously, each record exactly once."""
    at = bootstrap_of(context, bootstrap)
    subscription = subscription_of(topics, pattern)
    location = location_of(lake, storage)
    require_listener(at)
    with spark_session("penstock archive", master, memory, conf) as spark:
        from penstock.pipeline.archive.advisory_lock import archiver_lock
        from penstock.pipeline.archive.archiver import ArchiveOptions, Archiver
        from penstock.pipeline.workers import SparkWorkers

        settings = {"bootstrap.servers": at} | command_config(context) | pairs(kafka or (), "--kafka")
        options = ArchiveOptions(settings, subscription, location, name, max_offsets, accept_loss)
        with archiver_lock(options, take_over=take_over):
            archiver = Archiver(options, SparkWorkers(spark.sparkContext))
            if hold:
                archiver.hold()
            _archive_on(archiver, once, interval, json)


@app.command()
def compact(
    lake: LakeAt,
    target_mib: Annotated[int, typer.Option(min=1, help="Target file size in MiB.")] = 256,
    master: Master = DEFAULT_MASTER,
    memory: Memory = DEFAULT_MEMORY,
    conf: Conf = None,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Merge the small files of a lake."""
    from penstock.pipeline.lake.delta import open_lake

    opened = open_lake(location_of(lake, storage))
    with spark_session("penstock compact", master, memory, conf) as spark:
        from penstock.pipeline.lake.compaction import compact as compacted
        from penstock.pipeline.workers import SparkWorkers

        done = compacted(opened, SparkWorkers(spark.sparkContext), target_bytes=target_mib << 20)
    if json:
        show_json({"files_before": done.files_before, "files_after": done.files_after})
    else:
        typer.echo(f"merged {done.files_before} files into {done.files_after}, {_mib(done.bytes_after)}")


@app.command()
def expire(
    lake: LakeAt,
    days: Annotated[int, typer.Option(min=1, help="Days to keep.")],
    topics: Topics = None,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Remove old days from a lake; `vacuum` deletes their files later."""
    from penstock.pipeline.lake.delta import open_lake
    from penstock.pipeline.lake.upkeep import expire as expired

    before = (datetime.now(UTC) - timedelta(days=days)).date()
    wanted = None if topics is None else {each.strip() for each in topics.split(",")}
    gone = expired(open_lake(location_of(lake, storage)), before, wanted)
    if json:
        show_json({"before": before.isoformat(), "files": len(gone), "rows": sum(file.rows for file in gone)})
    else:
        typer.echo(f"removed {sum(file.rows for file in gone)} records of days before {before} ({len(gone)} files)")


@app.command()
def vacuum(
    lake: LakeAt,
    hours: Annotated[
        int, typer.Option(min=_LEAST_VACUUM_HOURS, help="Keep files that any version of the last N hours refers to.")
    ] = 168,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")] = False,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Delete files that the lake no longer refers to, and leftovers of killed tasks."""
    from penstock.pipeline.lake.delta import open_lake

    gone = open_lake(location_of(lake, storage)).vacuum(hours, is_rehearsal=dry_run)
    if json:
        show_json({"deleted": not dry_run, "files": sorted(gone)})
    else:
        typer.echo(f"{'would delete' if dry_run else 'deleted'} {len(gone)} files")


def _archive_on(archiver: Archiver, once: bool, interval: float, json: bool) -> None:
    with watch() as interrupt:
        while not interrupt.asked:
            batch = archiver.run_batch()
            if batch is not None:
                _tell(batch, json)
            elif once:
                return
            else:
                until = time.monotonic() + interval
                while time.monotonic() < until and not interrupt.asked:
                    time.sleep(_LOOK_S)


def _tell(batch: Batch, json: bool) -> None:
    if json:
        show_json({"version": batch.version, "rows": batch.rows, "lost": batch.lost, "left": batch.left})
        return
    lost = f", {batch.lost} offsets lost (deleted before they were archived)" if batch.lost else ""
    left = f", {batch.left} left" if batch.left else ""
    typer.echo(f"version {batch.version}: {batch.rows} records in {batch.files} files, {_mib(batch.size)}{lost}{left}")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
