"""Topics as tables of SQL: a query may name any of them, and gets all that there ever was of it.

We make a table when a query turns out to name it: Spark analyses the query, says which table is missing, and analyses
the query again.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException, PySparkException

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.querying.restriction import check
from penstock.pipeline.workers import raised_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    from penstock.pipeline.querying.frames import HistoryReader
    from penstock.pipeline.querying.history import History, TimeWindow

EVERY_TOPIC = "*"
"""The table of all topics together; no topic can be called so."""
MOST_TABLES = 100
INTERNAL = "__"
"""What names of topics that only brokers write begin with."""

_NO_TABLE = "TABLE_OR_VIEW_NOT_FOUND"
_PART = re.compile(r"`((?:[^`]|``)*)`")


class Tables:
    """The tables of one session."""

    def __init__(
        self,
        spark: SparkSession,
        history: History,
        reader: HistoryReader,
        window: TimeWindow,
        *,
        is_restricted: bool = False,
    ) -> None:
        """A restricted one refuses everything but queries of topics, and knows no internal topics."""
        self._is_restricted = is_restricted
        self._spark = spark
        self._history = history
        self._reader = reader
        self._window = window

    def query(self, text: str) -> DataFrame:
        """What a query says; its tables are as of now."""
        made: dict[str, str] = {}
        try:
            if self._is_restricted:
                check(self._spark, text)
            while True:
                try:
                    return self._spark.sql(text)
                except ParseException as error:
                    raise PipelineError(f"the query cannot be understood: {_first_lines(error)}") from None
                except AnalysisException as error:
                    if error.getCondition() != _NO_TABLE:
                        raise PipelineError(f"the query cannot be answered: {_first_lines(error)}") from None
                    self._make((error.getMessageParameters() or {})["relationName"], made)
        finally:
            # An answer keeps what its tables were.
            for name in made.values():
                self._spark.catalog.dropTempView(name)

    def _make(self, quoted: str, made: dict[str, str]) -> None:
        parts = [part.replace("``", "`") for part in _PART.findall(quoted)]
        name = ".".join(parts)
        names = [each for each in self._history.names if self._knows(each)]
        if name != EVERY_TOPIC and name not in names:
            raise PipelineError(f"there is no topic {name}{_hint(name, names)}")
        if len(parts) > 1:
            raise PipelineError(f"a topic's name with dots in it has to be quoted: `{name}`")
        twin = made.get(name.lower())
        if twin is not None:
            raise PipelineError(f"topics {twin} and {name} cannot be in one query: SQL takes their names for the same")
        if len(made) == MOST_TABLES:
            raise PipelineError(f"a query can name {MOST_TABLES} topics; `{EVERY_TOPIC}` is all of them")
        originals = [each for each in self._history.originals if self._knows(each)]
        topics = originals if name == EVERY_TOPIC else [name]
        frame = self._reader.frame(self._history.slice(topics, self._window), self._window)
        frame.createOrReplaceTempView(f"`{name}`")
        made[name.lower()] = name

    def _knows(self, topic: str) -> bool:
        return not (self._is_restricted and topic.startswith(INTERNAL))


def rows_of(frame: DataFrame, limit: int) -> Iterator[Row]:
    """At most so many rows of an answer, and one more if there are more."""
    try:
        yield from frame.limit(limit + 1).toLocalIterator()
    except PySparkException as error:
        raise raised_by(str(error)) from None


def _hint(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


def _first_lines(error: PySparkException) -> str:
    """Without the plan that Spark adds."""
    text = str(error).split(";\n")[0].split("\n\nJVM stacktrace")[0]
    return " ".join(text.split())
