"""Rows of a long list, as a grid asks for them: filtered, sorted and cut on the server. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

from penstock.console.errors import InvalidError

T = TypeVar("T")

MAX_LIMIT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuery:
    """Which rows of a list."""

    first: int = 0
    limit: int = 100
    sort: str = ""
    """The name of a column; empty for the list's own order."""
    is_descending: bool = False
    text: str = ""
    """Only rows whose name has all of these words in it, in any case."""


@dataclass(frozen=True, slots=True)
class RowPage(Generic[T]):
    """Some rows of a list."""

    items: tuple[T, ...]
    total: int
    """Of all rows that match."""
    at_ms: int
    """When the console asked the cluster."""


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What became of one thing of many; `error` says what was not done."""

    item: str
    is_done: bool
    code: str = ""
    error: str = ""


def row_page(
    rows: Iterable[T], query: RowQuery, at_ms: int, columns: Iterable[str], name: Callable[[T], str]
) -> RowPage[T]:
    """The rows that a query asks for; InvalidError if it sorts by what is no column."""
    words = query.text.casefold().split()
    found = [row for row in rows if all(word in name(row).casefold() for word in words)]
    if query.sort:
        known = sorted(columns)
        if query.sort not in known:
            raise InvalidError(f"rows cannot be sorted by {query.sort!r}; columns are {', '.join(known)}")
        value = attrgetter(query.sort)
        found.sort(key=lambda row: _sortable(value(row)), reverse=query.is_descending)
    return RowPage(tuple(found[query.first : query.first + query.limit]), len(found), at_ms)


def _sortable(value: Any) -> tuple[int, Any]:
    """What is unknown is less than everything."""
    if value is None:
        return 0, 0
    if isinstance(value, (tuple, dict)):
        return 1, len(value)
    return 1, value
