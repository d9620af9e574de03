"""What the broker counts, and how a scrape reads it.

Rules:

- Counting is a few additions to existing lists, because it happens for every request.
- Everything else is work of the scrape. It reads values of other parts (connections, log sizes) on the event loop,
  without a lock, and in slices, so that clients are served in between.
- Values of immutable objects, questions to the disk, and the rendering run in a thread.
- There is no process-wide registry: every object is handed to its users.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from penstock.broker.metrics.catalogue import Family
from penstock.logs import fields

log = logging.getLogger(__name__)

SLICE = 200
"""Values that are read at a time before the event loop does something else: well below a millisecond."""

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
Sample = tuple[Family, Sequence[str], float]
Values = dict[str, list[LabelledValue]]
"""By the name of their family."""

# A histogram as it is now: bounds, counts, sum.
Counted = tuple[Family, Sequence[float], Sequence[int], float]


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


class Histogram(Protocol):
    """Values that another part counts, in buckets."""

    bounds: Sequence[float]
    counts: list[int]
    """One for each bound, not added up, and one for what is above all of them."""
    total: float
    """The sum of all values."""


Source = Callable[[], Iterable[Sample | None]]
"""Gives the samples of some families, and None for each item that it has looked at without a sample. On the event loop
the registry takes SLICE items at a time, and the broker serves clients in between: the source must iterate over a copy.
"""


class Metrics:
    """Everything a scrape shows: requests, the values registered here, and the process."""

    def __init__(self, requests: RequestMetrics) -> None:
        self._requests = requests
        self._families: dict[str, Family] = {}
        self._sources: list[tuple[tuple[Family, ...], Source]] = []
        self._thread_sources: list[tuple[tuple[Family, ...], Source]] = []
        self._histograms: list[tuple[Family, Histogram]] = []
        self._turn = asyncio.Lock()

    def register(self, family: Family, read: Callable[[], float]) -> None:
        """One value without labels."""
        self.register_source((family,), lambda: [(family, (), read())])

    def register_source(self, families: Sequence[Family], read: Source) -> None:
        """Values that are read together, on the event loop; those that exist at the time: a deleted topic just ends."""
        self._sources.append((self._added(families), read))

    def register_thread_source(self, families: Sequence[Family], read: Source) -> None:
        """The same in a thread: for values that are immutable or not shared, and for what may wait for the disk."""
        self._thread_sources.append((self._added(families), read))

    def register_histogram(self, family: Family, histogram: Histogram) -> None:
        """Values that are counted in buckets."""
        self._added((family,))
        self._histograms.append((family, histogram))

    async def exposition(self) -> bytes:
        """All values now, in Prometheus' text format. One scrape at a time: they are not cheap."""
        async with self._turn:
            values: Values = {}
            for families, read in self._sources:
                values |= await _read_in_slices(families, read)
            histograms = [
                (family, tuple(found.bounds), tuple(found.counts), found.total) for family, found in self._histograms
            ]
            return await asyncio.to_thread(self._render, values, histograms)

    def _render(self, values: Values, histograms: Sequence[Counted]) -> bytes:
        """In a thread; the library is loaded at the first scrape, because a broker is to be ready before that."""
        from penstock.broker.metrics.exposition import render

        for families, read in self._thread_sources:
            try:
                values |= _collected(families, read())
            except Exception:
                _tell(families)
        readings = [(self._families[name], found) for name, found in values.items()]
        return render(self._requests.rows(), readings, histograms)

    def _added(self, families: Sequence[Family]) -> tuple[Family, ...]:
        for family in families:
            if family.name in self._families:
                raise ValueError(f"metric {family.name} is registered already")
            self._families[family.name] = family
        return tuple(families)


async def _read_in_slices(families: Sequence[Family], read: Source) -> Values:
    """Empty if the value cannot be read: one unreadable value must not hide the others."""
    samples: list[Sample | None] = []
    try:
        for sample in read():
            samples.append(sample)
            if len(samples) % SLICE == 0:
                await asyncio.sleep(0)
        return _collected(families, samples)
    except Exception:
        _tell(families)
        return {}


def _collected(families: Sequence[Family], samples: Iterable[Sample | None]) -> Values:
    values: Values = {family.name: [] for family in families}
    for sample in samples:
        if sample is not None:
            values[sample[0].name].append(sample[1:])
    return values


def _tell(families: Sequence[Family]) -> None:
    log.exception("a metric could not be read", extra=fields(metrics=", ".join(family.name for family in families)))
