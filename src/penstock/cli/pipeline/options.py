"""What the commands of `penstock pipeline` share: options, the lake's location, a Spark session."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import CommandError
from penstock.cli.output import pairs
from penstock.cli.positions import time_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.lake.delta import LakeLocation
    from penstock.pipeline.topics.options import TopicSelection

LakeAt = Annotated[
    str, typer.Option("--lake", metavar="PATH", help="Lake: a folder, or a URL such as s3://bucket/lake.")
]
Storage = Annotated[
    list[str] | None,
    typer.Option("--storage", metavar="NAME=VALUE", help="Object store option of the lake; repeatable."),
]
Master = Annotated[str, typer.Option(help="Spark master: local[*], spark://HOST:PORT, yarn, k8s://...")]
Memory = Annotated[str, typer.Option(help="Memory of the Spark driver.")]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Spark setting; repeatable.")]
Kafka = Annotated[
    list[str] | None, typer.Option("--kafka", metavar="NAME=VALUE", help="Kafka client setting; repeatable.")
]
Topics = Annotated[str | None, typer.Option("--topics", metavar="NAMES", help="Topics, separated by commas.")]
Pattern = Annotated[str | None, typer.Option("--pattern", metavar="REGEX", help="All topics whose full name matches.")]
SinceTime = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Sent at or after: an ISO time, or '2h ago'.")
]
UntilTime = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Sent before: an ISO time, or '2h ago'.")
]

DEFAULT_MASTER = "local[*]"
DEFAULT_MEMORY = "1g"


@contextmanager
def spark_session(
    name: str, master: str, memory: str, conf: list[str] | None, *, is_silent: bool = False
) -> Iterator[SparkSession]:
    """A Spark session with a temporary folder. A silent one does not write to the terminal: failures are raised, and
    workers that are cancelled would only print long tracebacks.
    """
    from penstock.pipeline.session import SparkOptions, start

    with tempfile.TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True) as folder:
        options = SparkOptions(Path(folder), master, memory, pairs(conf or (), "--conf"))
        with _words_to(Path(folder) / "spark.log") if is_silent else nullcontext():
            session = start(name, options)
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def _words_to(path: Path) -> Iterator[None]:
    """Processes that are started inside have a file as their standard error; it is shown if something fails."""
    sys.stderr.flush()
    ours = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except BaseException:
        os.dup2(ours, 2)
        sys.stderr.write(path.read_text(errors="replace"))
        raise
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def subscription_of(topics: str | None, pattern: str | None) -> TopicSelection:
    from penstock.pipeline.topics.options import TopicSelection

    if (topics is None) == (pattern is None):
        raise CommandError("give either --topics or --pattern")
    if topics is not None:
        return TopicSelection(topics=tuple(sorted({each.strip() for each in topics.split(",") if each.strip()})))
    return TopicSelection(pattern=pattern)


def location_of(lake: str, storage: list[str] | None) -> LakeLocation:
    from penstock.pipeline.lake.delta import LakeLocation

    uri = lake if "://" in lake else str(Path(lake).absolute())
    return LakeLocation(uri, pairs(storage or (), "--storage"))


def time_of(text: str | None, option: str) -> datetime | None:
    """The time that an option names."""
    time_ms = time_option(text, option)
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC)
