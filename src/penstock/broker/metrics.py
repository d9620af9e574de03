"""What the broker counts, and how a scrape reads it.

Rules:

- Counting is a few additions to plain lists that exist already: it happens for every request.
- All else is work of the scrape: values that live elsewhere (connections, log sizes) are not kept here but
  asked for by a callable, on the event loop, so that it may read the broker's state without a lock.
- Rendering the text takes tens of milliseconds for thousands of partitions and therefore runs in a thread.
- Everything hangs on objects that are handed around; there is no process-wide registry.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.logs import fields

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Upper bounds of the latency buckets, in seconds; tight where a broker answers from memory.
LATENCY_BOUNDS = (
    *(0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)

# One row an API: a counter for each latency bucket (the last is above all bounds), then these.
SECONDS = len(LATENCY_BOUNDS) + 1
REQUEST_BYTES = SECONDS + 1
RESPONSE_BYTES = SECONDS + 2
ERRORS = SECONDS + 3

# Label values in order, and the value that they have now.
LabelledValue = tuple[Sequence[str], float]

# A histogram as it is now: name, documentation, bounds, counts, sum.
Counted = tuple[str, str, Sequence[float], Sequence[int], float]


class RequestMetrics:
    """Counts requests by API; one more row takes what no known API accounts for."""

    def __init__(self, api_names: Mapping[int, str]) -> None:
        self._names = [*api_names.values(), "unknown"]
        rows: list[list[float]] = [[0] * SECONDS + [0.0, 0, 0, 0] for _ in self._names]
        self._rows = rows
        self._row_of_api = dict(zip(api_names, rows, strict=False))
        self._row_of_unknown = rows[-1]

    def observe(self, api_key: int, seconds: float, request_bytes: int, response_bytes: int, error: bool) -> None:
        """Count one answered request."""
        row = self._row_of_api.get(api_key, self._row_of_unknown)
        row[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        row[SECONDS] += seconds
        row[REQUEST_BYTES] += request_bytes
        row[RESPONSE_BYTES] += response_bytes
        if error:
            row[ERRORS] += 1

    def rows(self) -> list[tuple[str, list[float]]]:
        """The counters of each API; a row is copied in one step, so that its values agree even from another thread."""
        return [(name, list(row)) for name, row in zip(self._names, self._rows, strict=True)]


@dataclass(frozen=True, slots=True)
class Series:
    """A metric whose values are asked for at every scrape."""

    name: str
    documentation: str
    labels: tuple[str, ...]
    read: Callable[[], Iterable[LabelledValue]]
    is_counter: bool


class Histogram(Protocol):
    """Values counted by somebody else, in buckets."""

    bounds: Sequence[float]
    counts: list[int]
    """One for each bound, not added up, and one for what is above all of them."""
    total: float
    """The sum of all values."""


class Metrics:
    """Everything a scrape shows: requests, the values registered here, and the process."""

    def __init__(self, requests: RequestMetrics) -> None:
        self._requests = requests
        self._series: dict[str, Series] = {}
        self._histograms: dict[str, tuple[str, Histogram]] = {}

    def register_gauge(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """One value that goes up and down."""
        self._register(Series(name, documentation, (), lambda: [((), read())], is_counter=False))

    def register_gauges(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        read: Callable[[], Iterable[LabelledValue]],
    ) -> None:
        """One value for each set of labels, whichever exist at the time: a deleted topic simply ends."""
        self._register(Series(name, documentation, tuple(labels), read, is_counter=False))

    def register_counter(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """One value that only goes up; `_total` is added to its name."""
        self._register(Series(name, documentation, (), lambda: [((), read())], is_counter=True))

    def register_histogram(self, name: str, documentation: str, histogram: Histogram) -> None:
        """Values that are counted in buckets."""
        self._histograms[name] = (documentation, histogram)

    async def exposition(self) -> bytes:
        """All values now, in Prometheus' text format."""
        readings: list[tuple[Series, list[LabelledValue]]] = []
        for series in self._series.values():
            try:
                readings.append((series, list(series.read())))
            except Exception:
                # One value that cannot be had must not hide the others.
                log.exception("a metric could not be read", extra=fields(metric=series.name))
        histograms = [
            (name, text, tuple(found.bounds), tuple(found.counts), found.total)
            for name, (text, found) in self._histograms.items()
        ]
        return await asyncio.to_thread(_render, self._requests.rows(), readings, histograms)

    def _register(self, series: Series) -> None:
        if series.name in self._series:
            raise ValueError(f"metric {series.name} is registered already")
        self._series[series.name] = series


def _render(
    rows: list[tuple[str, list[float]]],
    readings: Sequence[tuple[Series, Sequence[LabelledValue]]],
    histograms: Sequence[Counted],
) -> bytes:
    """In a thread; loaded at the first scrape, because a broker is to be ready before that."""
    from penstock.broker.exposition import render

    return render(rows, readings, histograms)
