"""`penstock pipeline report`: reports on topics as an HTML page, as JSON, and as tables in the lake."""

from __future__ import annotations

import json as jsons
import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import CommandError
from penstock.cli.interrupt import watch as watched
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import show_json
from penstock.cli.pipeline.options import (
    DEFAULT_MASTER,
    DEFAULT_MEMORY,
    Conf,
    Kafka,
    Master,
    Memory,
    SinceTime,
    Storage,
    Topics,
    UntilTime,
    spark_session,
    time_of,
)
from penstock.cli.pipeline.progress import ProgressLines, progress
from penstock.cli.pipeline.sql import AcceptLoss, AnyLake, LakeOnly, LiveOnly, sides

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.querying.history import History
    from penstock.pipeline.reports.runner import Report, ReportOptions

_LOOK_S = 0.2


def report(
    context: typer.Context,
    lake: AnyLake = None,
    topics: Topics = None,
    since: SinceTime = None,
    until: UntilTime = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Only these: volume, latency, lag, failures, skew, delays, sizes, reconciliation; comma-separated.",
        ),
    ] = None,
    reconcile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A:B[:PREFIX]",
            help="Check that all biz-ids of topic A (with this prefix) appear in topic B; repeatable.",
        ),
    ] = None,
    producer_header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Header that names the sender; repeatable, the first one found counts."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JSON to a file.")] = None,
    watch: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=1, help="Repeat every N seconds until stopped.")
    ] = None,
    lake_only: LakeOnly = False,
    live_only: LiveOnly = False,
    accept_loss: AcceptLoss = False,
    max_rows: Annotated[int | None, typer.Option(min=1, help="Rows of each table in the JSON; default: all.")] = None,
    lines: ProgressLines = False,
    master: Master = DEFAULT_MASTER,
    memory: Memory = DEFAULT_MEMORY,
    conf: Conf = None,
    kafka: Kafka = None,
    storage: Storage = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Report volume, latency, lag, failures, skew, delays, sizes and reconciliation of topics."""
    if html is None and output is None and not json and (lake is None or live_only):
        raise CommandError(
            "no output: give --html FILE, --output FILE, --json, or --lake to store the report as tables"
        )
    location, settings = sides(context, lake, storage, bootstrap, kafka, lake_only=lake_only, live_only=live_only)
    begin, end = time_of(since, "--since"), time_of(until, "--until")
    names = _names(only)
    with spark_session("penstock report", master, memory, conf, is_silent=True) as spark:
        from penstock.pipeline.querying.history import TimeWindow, open_history
        from penstock.pipeline.reports.facts import SENDER_HEADERS
        from penstock.pipeline.reports.reconciliation import parse_pair
        from penstock.pipeline.reports.report_tables import FOLDER
        from penstock.pipeline.reports.runner import ReportOptions, chosen_topics

        history = open_history(location, settings, accepts_loss=accept_loss)
        named = None if topics is None else [each.strip() for each in topics.split(",") if each.strip()]
        options = ReportOptions(
            topics=(),
            window=TimeWindow(begin, end),
            location=location,
            kafka=settings,
            names=names,
            pairs=tuple(parse_pair(each) for each in reconcile or ()),
            sender_headers=tuple(producer_header or SENDER_HEADERS),
            origins=None if named is None else frozenset(named),
        )
        with watched() as interrupt:
            while not interrupt.asked:
                # Topics may be created meanwhile.
                options = replace(options, topics=chosen_topics(history, named))
                kept = None if options.location is None else f"{lake}/{FOLDER}"
                _deliver(_run(spark, options, history, lines), options, html, output, json, kept, max_rows)
                if watch is None:
                    break
                until_s = time.monotonic() + watch
                while time.monotonic() < until_s and not interrupt.asked:
                    time.sleep(_LOOK_S)


def _names(only: str | None) -> tuple[str, ...]:
    from penstock.pipeline.reports.results import NAMES as known

    wanted = [each.strip() for each in only.split(",")] if only is not None else list(known)
    for name in wanted:
        if name not in known:
            raise typer.BadParameter(
                f"there is no report {name!r}; reports are {', '.join(known)}", param_hint="--only"
            )
    return tuple(name for name in known if name in wanted)


def _run(spark: SparkSession, options: ReportOptions, history: History, lines: bool) -> Report:
    from penstock.pipeline.reports.runner import run

    with progress(lines) as tell:
        return run(spark, options, history, datetime.now(UTC), tell)


def _deliver(
    made: Report,
    options: ReportOptions,
    html: Path | None,
    output: Path | None,
    json: bool,
    kept: str | None,
    max_rows: int | None,
) -> None:
    """`kept` is where the lake has the tables, as the user spelt it."""
    from penstock.pipeline.reports.page import as_json, page
    from penstock.pipeline.reports.report_tables import store

    if options.location is not None:
        store(options.location, made.results, made.at)
    if html is not None:
        _write(html, page(made))
    if output is not None:
        _write(output, jsons.dumps(as_json(made, max_rows), ensure_ascii=False))
    if json:
        show_json(as_json(made, max_rows))
        return
    places = ", ".join(str(each) for each in (html, output, kept) if each is not None)
    typer.echo(f"{len(made.sections)} reports of {len(made.topics)} topics: {places}")


def _write(file: Path, text: str) -> None:
    """Readers of a report that is repeated find the last one or this one, never half of it."""
    if not file.is_file() and file.exists():
        # A pipe or a device.
        file.write_text(text, encoding="utf-8")
        return
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(file)
