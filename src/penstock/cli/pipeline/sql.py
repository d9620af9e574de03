"""`penstock pipeline sql`: one SQL query over archived and live records."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import command_config, require_listener
from penstock.cli.failure import CommandError
from penstock.cli.formats import exact, readable
from penstock.cli.options import Bootstrap, bootstrap_of
from penstock.cli.output import pairs, show_json, show_table
from penstock.cli.pipeline.options import (
    DEFAULT_MASTER,
    DEFAULT_MEMORY,
    Conf,
    Kafka,
    Master,
    Memory,
    SinceTime,
    Storage,
    UntilTime,
    location_of,
    spark_session,
    time_of,
)
from penstock.cli.pipeline.progress import ProgressLines, following, progress, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.lake.delta import LakeLocation

AnyLake = Annotated[
    str | None,
    typer.Option("--lake", metavar="PATH", help="Lake: a folder or a URL; default: live topics only."),
]
LakeOnly = Annotated[bool, typer.Option("--lake-only", help="Read archived records only; needs no broker.")]
LiveOnly = Annotated[bool, typer.Option("--live-only", help="Read live records only.")]
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Skip records that were deleted before they were archived.")
]


class Form(StrEnum):
    """Output format."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def sql(
    context: typer.Context,
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="Spark SQL. Each topic is a table; quote names with dots or dashes: `orders.eu`. `*` is all topics. "
            "-: read the query from standard input.",
        ),
    ],
    lake: AnyLake = None,
    since: SinceTime = None,
    until: UntilTime = None,
    lake_only: LakeOnly = False,
    live_only: LiveOnly = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum rows to print.")] = 1000,
    format: Annotated[Form, typer.Option(help="table, json (one line per row) or csv.")] = Form.TABLE,
    accept_loss: AcceptLoss = False,
    restricted: Annotated[
        bool,
        typer.Option("--restricted", help="Refuse what is not a query of topics: for queries that others wrote."),
    ] = False,
    lines: ProgressLines = False,
    master: Master = DEFAULT_MASTER,
    memory: Memory = DEFAULT_MEMORY,
    conf: Conf = None,
    kafka: Kafka = None,
    storage: Storage = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Query topics as tables, archived and live records together."""
    location, settings = sides(context, lake, storage, bootstrap, kafka, lake_only=lake_only, live_only=live_only)
    begin, end = time_of(since, "--since"), time_of(until, "--until")
    if query == "-":
        query = sys.stdin.read()
    if restricted:
        from penstock.pipeline.querying.restriction import SETTINGS

        conf = [*(conf or ()), *(f"{name}={value}" for name, value in SETTINGS.items())]
    with spark_session("penstock sql", master, memory, conf, is_silent=True) as spark, _told(spark, lines):
        from penstock.pipeline.querying.frames import HistoryReader
        from penstock.pipeline.querying.history import TimeWindow, open_history
        from penstock.pipeline.querying.sql import Tables, rows_of

        window = TimeWindow(begin, end)
        tables = Tables(
            spark,
            open_history(location, settings, accepts_loss=accept_loss),
            HistoryReader(spark, location, settings),
            window,
            is_restricted=restricted,
        )
        frame = tables.query(query)
        rows = rows_of(frame, limit)
        show(frame.columns, islice(rows, limit), format)
        if next(rows, None) is not None:
            typer.echo(f"penstock: more than {limit} rows; raise --limit to see them", err=True)


@contextmanager
def _told(spark: SparkSession, as_lines: bool) -> Iterator[None]:
    """Tells programs which part of the tasks is done."""
    if not as_lines:
        yield
        return
    with progress(as_lines) as tell, following(lambda: tell("tasks", *tasks_of(spark))):
        yield


def sides(
    context: typer.Context,
    lake: str | None,
    storage: list[str] | None,
    bootstrap: str | None,
    kafka: list[str] | None,
    *,
    lake_only: bool,
    live_only: bool,
) -> tuple[LakeLocation | None, dict[str, str] | None]:
    """The lake's location and the Kafka client's settings; None for a side that is not read."""
    if lake_only and live_only:
        raise CommandError("--lake-only and --live-only exclude each other")
    if lake_only and lake is None:
        raise CommandError("--lake-only needs --lake")
    location = None if lake is None or live_only else location_of(lake, storage)
    if lake_only:
        return location, None
    at = bootstrap_of(context, bootstrap)
    require_listener(at)
    return location, {"bootstrap.servers": at} | command_config(context) | pairs(kafka or (), "--kafka")


def show(names: Sequence[str], rows: Iterable[Sequence[Any]], form: Form) -> None:
    """Prints an answer; bytes are exact in JSON, and readable elsewhere."""
    if form is Form.JSON:
        for row in rows:
            show_json({name: plain(value) for name, value in zip(names, row, strict=True)})
    elif form is Form.CSV:
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([cell(value) for value in row] for row in rows)
        sys.stdout.write(written.getvalue())
    else:
        show_table(names, [[cell(value) for value in row] for row in rows])


def plain(value: Any) -> Any:
    """A value of a row as JSON has it."""
    if isinstance(value, bytes | bytearray):
        return exact(bytes(value))
    if isinstance(value, datetime):
        return _utc(value).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(each) for name, each in value.items()}
    if hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def cell(value: Any) -> str:
    """A value of a row as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        return readable(bytes(value))
    if isinstance(value, list):
        return ", ".join(_header(each) if hasattr(each, "asDict") else cell(each) for each in value)
    found = plain(value)
    return readable(str(found).encode()) if not isinstance(found, bool) else str(found).lower()


def _header(row: Any) -> str:
    return "=".join(cell(each) for each in row)


def _utc(moment: datetime) -> datetime:
    # Spark gives moments without a zone, in that of this process.
    return moment.astimezone(UTC)
