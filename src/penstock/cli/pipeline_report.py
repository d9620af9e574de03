"""`penstock pipeline report`: what topics were like, as a page, as JSON, and as tables in the lake."""

from __future__ import annotations

import json as jsons
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import CommandError
from penstock.cli.interrupt import watch as watched
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import show_json
from penstock.cli.pipeline_options import (
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
from penstock.cli.pipeline_sql import AcceptLoss, AnyLake, LakeOnly, LiveOnly, sides

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.querying.history import History
    from penstock.pipeline.reports.running import Report, ReportWish, Tell

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
            help="Some of: volume, latency, lag, failures, skew, delays, sizes, reconciliation; separated by commas.",
        ),
    ] = None,
    reconcile: Annotated[
        list[str] | None,
        typer.Option(metavar="A:B[:PREFIX]", help="Were all biz-ids of topic A (that begin so) seen in B? Repeatable."),
    ] = None,
    producer_header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Header that says who has sent a record; repeatable, the first counts."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page there.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON there.")] = None,
    watch: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=1, help="Again and again, with such a pause, until stopped.")
    ] = None,
    lake_only: LakeOnly = False,
    live_only: LiveOnly = False,
    accept_loss: AcceptLoss = False,
    master: Master = DEFAULT_MASTER,
    memory: Memory = DEFAULT_MEMORY,
    conf: Conf = None,
    kafka: Kafka = None,
    storage: Storage = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Volume, latency, lag, failures, skew, delays, sizes and reconciliation of topics."""
    if html is None and output is None and not json and (lake is None or live_only):
        raise CommandError("where to? Say --html FILE, --output FILE or --json; with --lake it is kept there as tables")
    place, settings = sides(context, lake, storage, bootstrap, kafka, lake_only=lake_only, live_only=live_only)
    begin, end = time_of(since, "--since"), time_of(until, "--until")
    names = _names(only)
    with spark_session("penstock report", master, memory, conf, is_silent=True) as spark:
        from penstock.pipeline.querying.history import Window, open_history
        from penstock.pipeline.reports.facts import SENDER_HEADERS
        from penstock.pipeline.reports.reconciliation import parse_pair
        from penstock.pipeline.reports.running import ReportWish, chosen_topics
        from penstock.pipeline.reports.storing import FOLDER

        history = open_history(place, settings, accepts_loss=accept_loss)
        named = None if topics is None else [each.strip() for each in topics.split(",") if each.strip()]
        wish = ReportWish(
            topics=(),
            window=Window(begin, end),
            place=place,
            kafka=settings,
            names=names,
            pairs=tuple(parse_pair(each) for each in reconcile or ()),
            sender_headers=tuple(producer_header or SENDER_HEADERS),
            origins=None if named is None else frozenset(named),
        )
        with watched() as interrupt:
            while not interrupt.asked:
                # Topics may come while it is watched.
                wished = replace(wish, topics=chosen_topics(history, named))
                kept = None if wished.place is None else f"{lake}/{FOLDER}"
                _deliver(_run(spark, wished, history), wished, html, output, json, kept)
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
            raise typer.BadParameter(f"there is no report {name!r}; known are {', '.join(known)}", param_hint="--only")
    return tuple(name for name in known if name in wanted)


def _run(spark: SparkSession, wish: ReportWish, history: History) -> Report:
    from penstock.pipeline.reports.running import run

    with _progress() as tell:
        return run(spark, wish, history, datetime.now(UTC), tell)


def _deliver(
    made: Report, wish: ReportWish, html: Path | None, output: Path | None, json: bool, kept: str | None
) -> None:
    """`kept` is where the lake has it, in the words of whoever asked."""
    from penstock.pipeline.reports.page import as_json, page
    from penstock.pipeline.reports.storing import store

    if wish.place is not None:
        store(wish.place, made.results, made.at)
    if html is not None:
        html.write_text(page(made), encoding="utf-8")
    if output is not None:
        output.write_text(jsons.dumps(as_json(made), ensure_ascii=False), encoding="utf-8")
    if json:
        show_json(as_json(made))
        return
    places = ", ".join(str(each) for each in (html, output, kept) if each is not None)
    typer.echo(f"{len(made.sections)} reports of {len(made.topics)} topics: {places}")


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on standard error, if somebody looks at it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield tell
