"""How far a command of the pipeline is: a bar on a terminal, lines of JSON for programs, nothing elsewhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.reports.runner import Tell

ProgressLines = Annotated[
    bool,
    typer.Option(
        "--progress", help='Write lines such as {"progress": "tasks", "done": 1, "total": 9} to standard error.'
    ),
]

_LOOK_S = 1.0


@contextmanager
def progress(as_lines: bool) -> Iterator[Tell]:
    """The function to call with the current step, how much of it is done, and of how much."""
    from rich.console import Console
    from rich.progress import Progress

    if as_lines:
        yield _tell_line
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield tell


@contextmanager
def following(look: Callable[[], None]) -> Iterator[None]:
    """Looks again and again, in a thread, until it is left."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(_LOOK_S):
            look()

    thread = threading.Thread(target=follow, name="penstock-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def tasks_of(spark: SparkSession) -> tuple[int, int]:
    """How many tasks of the stages that run now are done, and how many there are."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(id) for id in tracker.getActiveStageIds()]
    known = [each for each in stages if each is not None]
    return sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known)


def _tell_line(what: str, done: int, total: int) -> None:
    typer.echo(json.dumps({"progress": what, "done": done, "total": total}), err=True)
