"""Metrics as Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.metrics import catalogue
from penstock.broker.metrics.catalogue import Family, MetricKind
from penstock.broker.metrics.registry import (
    ERRORS,
    LATENCY_BOUNDS,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    SECONDS,
    Counted,
    LabelledValue,
)


def render(
    rows: Sequence[tuple[str, Sequence[float]]],
    readings: Sequence[tuple[Family, Sequence[LabelledValue]]],
    histograms: Sequence[Counted],
) -> bytes:
    """Requests by API, the values that were read, and the process."""
    registry = CollectorRegistry()
    registry.register(_Families([_family(family, values) for family, values in readings]))
    registry.register(_Families([_histogram(*counted) for counted in histograms]))
    registry.register(_Families(_request_families(rows)))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Families(Collector):
    """Values that have been read already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _family(family: Family, values: Iterable[LabelledValue] = ()) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if family.kind is MetricKind.COUNTER else GaugeMetricFamily
    made = kind(family.name, family.documentation, labels=family.labels)
    for labels, value in values:
        made.add_metric(labels, value)
    return made


def _request_families(rows: Sequence[tuple[str, Sequence[float]]]) -> Iterator[Metric]:
    requests, received, sent, errors = (
        _family(family)
        for family in (
            catalogue.REQUESTS,
            catalogue.REQUEST_BYTES,
            catalogue.RESPONSE_BYTES,
            catalogue.REQUEST_ERRORS,
        )
    )
    timed = catalogue.REQUEST_SECONDS
    seconds = HistogramMetricFamily(timed.name, timed.documentation, labels=timed.labels)
    for name, row in rows:
        buckets, total = _cumulated(LATENCY_BOUNDS, row)
        requests.add_metric([name], total)
        seconds.add_metric([name], buckets, row[SECONDS])
        received.add_metric([name], row[REQUEST_BYTES])
        sent.add_metric([name], row[RESPONSE_BYTES])
        errors.add_metric([name], row[ERRORS])
    yield from (requests, seconds, received, sent, errors)


def _histogram(family: Family, bounds: Sequence[float], counts: Sequence[int], total: float) -> Metric:
    made = HistogramMetricFamily(family.name, family.documentation)
    made.add_metric([], _cumulated(bounds, counts)[0], total)
    return made


def _cumulated(bounds: Sequence[float], row: Sequence[float]) -> tuple[list[tuple[str, float]], float]:
    total = 0.0
    buckets = []
    for bound, count in zip((*map(str, bounds), "+Inf"), row, strict=False):
        total += count
        buckets.append((bound, total))
    return buckets, total
