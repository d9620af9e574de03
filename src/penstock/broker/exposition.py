"""Metrics as Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.metrics import (
    ERRORS,
    LATENCY_BOUNDS,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    SECONDS,
    Counted,
    LabelledValue,
    Series,
)


def render(
    rows: Sequence[tuple[str, Sequence[float]]],
    readings: Sequence[tuple[Series, Sequence[LabelledValue]]],
    histograms: Sequence[Counted],
) -> bytes:
    """Requests by API, the values that were read, and the process."""
    registry = CollectorRegistry()
    registry.register(_Families([_family(series, values) for series, values in readings]))
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


def _family(series: Series, values: Iterable[LabelledValue]) -> Metric:
    kind = CounterMetricFamily if series.is_counter else GaugeMetricFamily
    family = kind(series.name, series.documentation, labels=series.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _request_families(rows: Sequence[tuple[str, Sequence[float]]]) -> Iterator[Metric]:
    label = ["api"]
    requests = CounterMetricFamily("penstock_requests", "Requests answered.", labels=label)
    seconds = HistogramMetricFamily(
        "penstock_request_seconds", "Time from a whole request to its answer.", labels=label
    )
    received = CounterMetricFamily("penstock_request_bytes", "Bytes of requests.", labels=label)
    sent = CounterMetricFamily("penstock_response_bytes", "Bytes of answers.", labels=label)
    errors = CounterMetricFamily("penstock_request_errors", "Requests answered with an error code.", labels=label)
    for name, row in rows:
        buckets, total = _cumulated(LATENCY_BOUNDS, row)
        requests.add_metric([name], total)
        seconds.add_metric([name], buckets, row[SECONDS])
        received.add_metric([name], row[REQUEST_BYTES])
        sent.add_metric([name], row[RESPONSE_BYTES])
        errors.add_metric([name], row[ERRORS])
    yield from (requests, seconds, received, sent, errors)


def _histogram(name: str, documentation: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Metric:
    family = HistogramMetricFamily(name, documentation)
    family.add_metric([], _cumulated(bounds, counts)[0], total)
    return family


def _cumulated(bounds: Sequence[float], row: Sequence[float]) -> tuple[list[tuple[str, float]], float]:
    total = 0.0
    buckets = []
    for bound, count in zip((*map(str, bounds), "+Inf"), row, strict=False):
        total += count
        buckets.append((bound, total))
    return buckets, total
