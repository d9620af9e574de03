"""What a report gives: tables, collected and bounded, and figures drawn from their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

NAMES = ("volume", "latency", "lag", "failures", "skew", "delays", "sizes", "reconciliation")
"""Of all reports, in their order on the page."""
MOST_ROWS = 100_000
"""A table has so many rows at most; the first ones, in its order."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A table to be computed."""

    name: str
    """As a table in the lake."""
    title: str
    frame: DataFrame


@dataclass(frozen=True, slots=True)
class Result:
    """A table that was computed."""

    name: str
    title: str
    table: pa.Table
    is_cut: bool

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found

    def as_json(self, most_rows: int | None = None) -> dict[str, Any]:
        shown: list[dict[str, Any]] = self.table.slice(0, most_rows).to_pylist()
        rows = [{name: plain(value) for name, value in row.items()} for row in shown]
        return {
            "name": self.name,
            "title": self.title,
            "columns": self.table.column_names,
            "is_cut": self.is_cut or len(rows) < self.table.num_rows,
            "row_count": self.table.num_rows,
            "rows": rows,
        }


@dataclass(frozen=True, slots=True)
class Lines:
    """Values over time, a line for each name."""

    title: str
    unit: str
    series: Mapping[str, Sequence[tuple[datetime, float]]]


@dataclass(frozen=True, slots=True)
class Columns:
    """Values of steps, one column for each, parts stacked on each other."""

    title: str
    unit: str
    steps: Sequence[str]
    parts: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Bars:
    """Named values, the longest bar the largest; a text beside each."""

    title: str
    unit: str
    values: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Spans:
    """Named values of a middle and two bad cases, on a scale of powers of ten."""

    title: str
    unit: str
    values: Sequence[tuple[str, float, float, float]]


Figure = Lines | Columns | Bars | Spans


@dataclass(frozen=True, slots=True)
class Section:
    """One report."""

    name: str
    title: str
    note: str
    """What the figures mean, and what they cannot say."""
    results: tuple[Result, ...]
    figures: tuple[Figure, ...] = field(default=())


def collected(asked: Asked) -> Result:
    """Computes a table."""
    found = asked.frame.limit(MOST_ROWS + 1).toArrow()
    return Result(asked.name, asked.title, found.slice(0, MOST_ROWS), found.num_rows > MOST_ROWS)


def figure_json(figure: Figure) -> dict[str, Any]:
    """A figure with its kind; times are ISO texts."""
    told: dict[str, Any] = {"kind": type(figure).__name__.lower(), "title": figure.title, "unit": figure.unit}
    match figure:
        case Lines():
            series = {
                name: [[plain(moment), value] for moment, value in points] for name, points in figure.series.items()
            }
            return told | {"series": series}
        case Columns():
            parts = {name: list(values) for name, values in figure.parts.items()}
            return told | {"steps": list(figure.steps), "parts": parts}
        case _:
            return told | {"values": [list(each) for each in figure.values]}


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, datetime | date):
        return value.isoformat().replace("+00:00", "Z")
    return value
