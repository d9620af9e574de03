"""What a scrape shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.metrics.catalogue import CONNECTIONS, LOG_SIZE_BYTES, OFFSET_COMMITS, Family
from penstock.broker.metrics.registry import LATENCY_BOUNDS, SLICE, Metrics, RequestMetrics, Sample, Source


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
    metrics.register(CONNECTIONS, lambda: connections[0])
    assert (await scrape(metrics))["penstock_connections", ()] == 3
    connections[0] = 5
    assert (await scrape(metrics))["penstock_connections", ()] == 5


@pytest.mark.parametrize("register", [Metrics.register_source, Metrics.register_thread_source])
async def test_labelled_gauges_show_what_exists_now(
    metrics: Metrics, register: Callable[[Metrics, Sequence[Family], Source], None]
) -> None:
    sizes = {("orders", "0"): 10.0, ('odd"\\\n', "1"): 20.0}
    register(metrics, [LOG_SIZE_BYTES], lambda: [(LOG_SIZE_BYTES, *found) for found in sizes.items()])
    seen = await scrape(metrics)
    assert seen["penstock_log_size_bytes", (("partition", "0"), ("topic", "orders"))] == 10
    assert seen["penstock_log_size_bytes", (("partition", "1"), ("topic", 'odd"\\\n'))] == 20
    del sizes["orders", "0"]
    assert [labels for name, labels in await scrape(metrics) if name == "penstock_log_size_bytes"] == [
        (("partition", "1"), ("topic", 'odd"\\\n'))
    ]


async def test_a_counter_is_shown_as_a_total(metrics: Metrics) -> None:
    metrics.register(OFFSET_COMMITS, lambda: 7)
    assert (await scrape(metrics))["penstock_offset_commits_total", ()] == 7
    assert b"# TYPE penstock_offset_commits_total counter" in await metrics.exposition()


@pytest.mark.parametrize("register", [Metrics.register_source, Metrics.register_thread_source])
async def test_a_value_that_cannot_be_read_does_not_hide_the_others(
    metrics: Metrics, register: Callable[[Metrics, Sequence[Family], Source], None]
) -> None:
    def fail() -> Iterable[Sample]:
        yield LOG_SIZE_BYTES, ("orders", "0"), 1
        raise RuntimeError("gone")

    register(metrics, [LOG_SIZE_BYTES], fail)
    metrics.register(CONNECTIONS, lambda: 1)
    seen = await scrape(metrics)
    assert seen["penstock_connections", ()] == 1
    assert not any(name == "penstock_log_size_bytes" for name, _ in seen)


async def test_however_many_values_there_are_the_event_loop_goes_on_while_they_are_read(metrics: Metrics) -> None:
    slices = 50
    read = 0
    most_between_turns = 0

    def many() -> Iterable[Sample | None]:
        nonlocal read
        for number in range(slices * SLICE):
            read += 1
            # Half of them are looked at without a sample, as by those who only count.
            yield (LOG_SIZE_BYTES, ("orders", str(number)), 1) if number % 2 else None

    async def watch() -> None:
        nonlocal most_between_turns
        seen = 0
        while read < slices * SLICE:
            most_between_turns = max(most_between_turns, read - seen)
            seen = read
            await asyncio.sleep(0)

    metrics.register_source([LOG_SIZE_BYTES], many)
    watching = asyncio.create_task(watch())
    samples = await scrape(metrics)
    await watching
    assert sum(name == "penstock_log_size_bytes" for name, _ in samples) == slices * SLICE / 2
    assert 0 < most_between_turns <= SLICE


async def test_scrapes_come_one_after_the_other(metrics: Metrics) -> None:
    running = most = 0

    def slow() -> Iterable[Sample | None]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        yield from [None] * (3 * SLICE)
        running -= 1

    metrics.register_source([LOG_SIZE_BYTES], slow)
    await asyncio.gather(*(metrics.exposition() for _ in range(5)))
    assert most == 1


async def test_the_process_is_described(metrics: Metrics) -> None:
    seen = await scrape(metrics)
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"):
        assert seen[name, ()] > 0


def test_one_name_is_registered_once(metrics: Metrics) -> None:
    metrics.register(CONNECTIONS, lambda: 1)
    with pytest.raises(ValueError, match="penstock_connections"):
        metrics.register(CONNECTIONS, lambda: 2)


async def test_two_brokers_in_one_process_count_for_themselves(requests: RequestMetrics) -> None:
    other = Metrics(RequestMetrics({0: "Produce"}))
    requests.observe(0, 0.1, 1, 1, False)
    assert (await scrape(other))["penstock_requests_total", of_api("Produce")] == 0
