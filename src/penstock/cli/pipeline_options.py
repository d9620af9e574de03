"""What the commands of `penstock pipeline` share: options, the lake's place, a session of Spark."""

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
from penstock.cli.positions import Since, parse_position
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.lake.delta import Place
    from penstock.pipeline.topics.options import Subscription

LakeAt = Annotated[
    str, typer.Option("--lake", metavar="PATH", help="The lake: a folder, or an address such as s3://bucket/lake.")
]
Storage = Annotated[
    list[str] | None,
    typer.Option("--storage", metavar="NAME=VALUE", help="Option of the lake's object store; repeatable."),
]
Master = Annotated[str, typer.Option(help="Spark's master: local[*], spark://HOST:PORT, yarn, k8s://...")]
Memory = Annotated[str, typer.Option(help="Memory of Spark's driver.")]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Setting of Spark; repeatable.")]
Kafka = Annotated[
    list[str] | None, typer.Option("--kafka", metavar="NAME=VALUE", help="Setting of the Kafka client; repeatable.")
]
Topics = Annotated[str | None, typer.Option("--topics", metavar="NAMES", help="Topics, separated by commas.")]
Pattern = Annotated[str | None, typer.Option("--pattern", metavar="REGEX", help="All topics whose whole name matches.")]
SinceTime = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Sent then or later: an ISO time, or '2h ago'.")
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
    """A session, with a folder that goes with it. A silent one keeps its own words for itself: what it cannot do is
    raised, and workers whose answers are wanted no longer complain about it at length.
    """
    from penstock.pipeline.session import SparkWish, start

    with tempfile.TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True) as folder:
        wish = SparkWish(Path(folder), master, memory, pairs(conf or (), "--conf"))
        with _words_to(Path(folder) / "spark.log") if is_silent else nullcontext():
            session = start(name, wish)
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


def subscription_of(topics: str | None, pattern: str | None) -> Subscription:
    from penstock.pipeline.topics.options import Subscription

    if (topics is None) == (pattern is None):
        raise CommandError("which topics? Say --topics or --pattern")
    if topics is not None:
        return Subscription(topics=tuple(sorted({each.strip() for each in topics.split(",") if each.strip()})))
    return Subscription(pattern=pattern)


def place_of(lake: str, storage: list[str] | None) -> Place:
    from penstock.pipeline.lake.delta import Place

    uri = lake if "://" in lake else str(Path(lake).absolute())
    return Place(uri, pairs(storage or (), "--storage"))


def time_of(text: str | None, option: str) -> datetime | None:
    """The moment that an option names."""
    if text is None:
        return None
    try:
        position = parse_position(text, SystemClock().now_ms())
    except ValueError:
        position = None
    if not isinstance(position, Since):
        raise typer.BadParameter(
            f"{text!r}: allowed is a time such as 2026-03-01T12:00:00Z, or a while such as '10m ago'", param_hint=option
        )
    return datetime.fromtimestamp(position.time_ms / 1000, UTC)
