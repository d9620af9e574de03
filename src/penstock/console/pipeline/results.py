"""What jobs have given, read from what their commands wrote. Pure.

A result is JSON from a process of ours, but what is in it are the values of messages: numbers that a browser cannot
hold become texts, and nothing that cannot be read fails the console.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.console.errors import ConflictError

_MOST_EXACT = 2**53
QUOTING = frozenset({"volume", "failures", "skew", "reconciliation"})
"""Reports that show what messages have in them: names of producers, errors, keys, business ids."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """Rows, in the order of the query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool
    """There are more rows than the caller requested."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    row_count: int
    is_cut: bool


@dataclass(frozen=True, slots=True)
class ReportSection:
    name: str
    title: str
    note: str
    tables: tuple[ReportTable, ...]
    figures: tuple[dict[str, Any], ...]
    """`kind` is lines, columns, bars or spans."""


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    at: str
    since: str | None
    until: str | None
    topics: tuple[str, ...]
    sections: tuple[ReportSection, ...]
    left_out: tuple[str, ...]
    """Titles of sections that the caller does not see, because a masking rule counts for its role."""


@dataclass(frozen=True, slots=True)
class ReplayedPartition:
    partition: int
    target: int | None
    """The partition of the target; None: by key."""
    rows: int


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    name: str
    """A replay of the same name sends nothing twice."""
    rows: int
    """Of a dry run: that would be sent, minus those sent before; else: that were sent."""
    partitions: tuple[ReplayedPartition, ...]


def query_answer(raw: bytes, most_rows: int) -> QueryAnswer:
    rows = [_parsed(line) for line in raw.decode("utf-8", "replace").split("\n") if line]
    columns = tuple(rows[0]) if rows else ()
    shown = tuple(tuple(row.get(name) for name in columns) for row in rows[:most_rows])
    return QueryAnswer(columns, shown, len(rows) > most_rows)


def report_answer(raw: bytes, *, leaves_out_quotes: bool) -> ReportAnswer:
    told = _parsed(raw.decode("utf-8", "replace"))
    sections = [_section(each) for each in told["sections"]]
    hidden = [each for each in sections if leaves_out_quotes and each.name in QUOTING]
    return ReportAnswer(
        told["at"],
        told["since"],
        told["until"],
        tuple(told["topics"]),
        tuple(each for each in sections if each not in hidden),
        tuple(each.title for each in hidden),
    )


def replay_answer(raw: bytes, target_partitions: int) -> ReplayAnswer:
    """`target_partitions` is how many the target has; what is of a partition that it lacks is sent by key."""
    told = _parsed(raw.decode("utf-8", "replace"))
    partitions = [
        ReplayedPartition(
            each["partition"], each["partition"] if each["partition"] < target_partitions else None, each["rows"]
        )
        for each in told.get("partitions", ())
    ]
    return ReplayAnswer(told["id"], told.get("rows", told.get("sent", 0)), tuple(partitions))


def _section(told: Mapping[str, Any]) -> ReportSection:
    tables = [
        ReportTable(
            each["name"],
            each["title"],
            tuple(each["columns"]),
            tuple(each["rows"]),
            each["row_count"],
            each["is_cut"],
        )
        for each in told["tables"]
    ]
    return ReportSection(told["name"], told["title"], told["note"], tuple(tables), tuple(told["figures"]))


def _parsed(text: str) -> Any:
    try:
        return _exact(json.loads(text, parse_constant=str))
    except (ValueError, RecursionError):
        raise ConflictError("the result of the job cannot be read: it may have been cut off") from None


def _exact(value: Any) -> Any:
    """Numbers that JavaScript would round, as texts."""
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_exact(each) for each in value]
    if isinstance(value, int) and abs(value) > _MOST_EXACT:
        return str(value)
    return value
