"""What a scrape shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.metrics import LATENCY_BOUNDS, Metrics, RequestMetrics


@pytest.fixture
def requests() -> RequestMetrics:
    return RequestMetrics({0: "Produce", 1: "Fetch"})


@pytest.fixture
def metrics(requests: RequestMetrics) -> Metrics:
    return Metrics(requests)


async def scrape(metrics: Metrics) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = (await metrics.exposition()).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_api(api: str, **more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"api": api, **more}.items()))


async def test_requests_are_counted_by_api(requests: RequestMetrics, metrics: Metrics) -> None:
    requests.observe(0, 0.002, 1000, 60, False)
    requests.observe(0, 0.004, 500, 40, True)
    requests.observe(1, 0.5, 10, 99_000, False)
    seen = await scrape(metrics)
    for api, count, received, sent, errors, seconds in (
        ("Produce", 2, 1500, 100, 1, 0.006),
        ("Fetch", 1, 10, 99_000, 0, 0.5),
        ("unknown", 0, 0, 0, 0, 0),
    ):
        assert seen["penstock_requests_total", of_api(api)] == count
        assert seen["penstock_request_bytes_total", of_api(api)] == received
        assert seen["penstock_response_bytes_total", of_api(api)] == sent
        assert seen["penstock_request_errors_total", of_api(api)] == errors
        assert seen["penstock_request_seconds_count", of_api(api)] == count
        assert seen["penstock_request_seconds_sum", of_api(api)] == pytest.approx(seconds)


async def test_a_request_of_an_unknown_api_is_counted_as_such(requests: RequestMetrics, metrics: Metrics) -> None:
    requests.observe(999, 0.1, 1, 2, True)
    assert (await scrape(metrics))["penstock_requests_total", of_api("unknown")] == 1


@pytest.mark.parametrize("index", range(len(LATENCY_BOUNDS)))
async def test_a_latency_falls_into_the_bucket_whose_bound_it_does_not_pass(
    requests: RequestMetrics, metrics: Metrics, index: int
) -> None:
    bound = LATENCY_BOUNDS[index]
    requests.observe(0, bound, 0, 0, False)
    requests.observe(0, bound * 1.000001, 0, 0, False)
    seen = await scrape(metrics)
    counts = [
        seen["penstock_request_seconds_bucket", of_api("Produce", le=le)] for le in (*map(str, LATENCY_BOUNDS), "+Inf")
    ]
    assert counts == [0] * index + [1] + [2] * (len(LATENCY_BOUNDS) - index)


async def test_a_gauge_is_read_at_every_scrape(metrics: Metrics) -> None:
    connections = [3]
    metrics.register_gauge("penstock_connections", "Open connections.", lambda: connections[0])
    assert (await scrape(metrics))["penstock_connections", ()] == 3
    connections[0] = 5
    assert (await scrape(metrics))["penstock_connections", ()] == 5


async def test_labelled_gauges_show_what_exists_now(metrics: Metrics) -> None:
    sizes = {("orders", "0"): 10.0, ('odd"\\\n', "1"): 20.0}
    metrics.register_gauges("penstock_log_bytes", "Size.", ("topic", "partition"), lambda: sizes.items())
    seen = await scrape(metrics)
    assert seen["penstock_log_bytes", (("partition", "0"), ("topic", "orders"))] == 10
    assert seen["penstock_log_bytes", (("partition", "1"), ("topic", 'odd"\\\n'))] == 20
    del sizes["orders", "0"]
    assert [labels for name, labels in await scrape(metrics) if name == "penstock_log_bytes"] == [
        (("partition", "1"), ("topic", 'odd"\\\n'))
    ]


async def test_a_counter_is_shown_as_a_total(metrics: Metrics) -> None:
    metrics.register_counter("penstock_flushes", "Flushes.", lambda: 7)
    assert (await scrape(metrics))["penstock_flushes_total", ()] == 7
    assert b"# TYPE penstock_flushes_total counter" in await metrics.exposition()


async def test_a_value_that_cannot_be_read_does_not_hide_the_others(metrics: Metrics) -> None:
    def fail() -> Iterable[tuple[list[str], float]]:
        raise RuntimeError("gone")

    metrics.register_gauges("penstock_broken", "Fails.", ("topic",), fail)
    metrics.register_gauge("penstock_fine", "Works.", lambda: 1)
    seen = await scrape(metrics)
    assert seen["penstock_fine", ()] == 1
    assert not any(name == "penstock_broken" for name, _ in seen)


async def test_the_process_is_described(metrics: Metrics) -> None:
    seen = await scrape(metrics)
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"):
        assert seen[name, ()] > 0


def test_one_name_is_registered_once(metrics: Metrics) -> None:
    metrics.register_gauge("penstock_connections", "Open connections.", lambda: 1)
    with pytest.raises(ValueError, match="penstock_connections"):
        metrics.register_gauge("penstock_connections", "Again.", lambda: 2)


async def test_two_brokers_in_one_process_count_for_themselves(requests: RequestMetrics) -> None:
    other = Metrics(RequestMetrics({0: "Produce"}))
    requests.observe(0, 0.1, 1, 1, False)
    assert (await scrape(other))["penstock_requests_total", of_api("Produce")] == 0
