"""Workers that run many tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.pipeline import failure
from penstock.pipeline.failure import PipelineError

if TYPE_CHECKING:
    from pyspark import SparkContext

# How Spark spells what a task has raised: in the middle of traces of two languages.
_RAISED = re.compile(r"^(?:\w+\.)*penstock\.pipeline\.failure\.(\w+): (.+)$", re.MULTILINE)
_SHOWN_CHARS = 2000

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """Runs a function for each of several items, somewhere, perhaps more than once; gives one result for each."""

    @property
    def parallelism(self) -> int:
        """How many run at once."""
        ...

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]: ...


class SparkWorkers:
    """Tasks of Spark."""

    def __init__(self, spark: SparkContext) -> None:
        self._spark = spark

    @property
    def parallelism(self) -> int:
        return self._spark.defaultParallelism

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            return self._spark.parallelize(items, len(items)).map(function).collect()
        except (PySparkException, Py4JJavaError) as error:
            raise raised_by(str(error)) from None


def raised_by(told: str) -> PipelineError:
    """The error that a task has raised, if it is one of ours."""
    found = _RAISED.search(told)
    if found is None:
        return PipelineError(f"Spark could not do it: {told[:_SHOWN_CHARS]}")
    kind: type[PipelineError] = getattr(failure, found[1], PipelineError)
    return kind(found[2])
