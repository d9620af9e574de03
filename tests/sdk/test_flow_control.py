"""How fast a subscription takes messages, against a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

import penstock
from support.broker_process import BrokerProcess
from support.receiving import Heard, committed, create, running, wait_until_committed, wait_until_joined
from support.waiting import PATIENCE_S, until


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    return create(admin, topic, 2)


def fill(client: penstock.Client, topic: str, count: int) -> None:
    for number in range(count):
        client.send_soon(topic, f"{number}")
    assert client.flush()


def test_a_rate_is_never_exceeded(client: penstock.Client, created: str) -> None:
    times: list[float] = []
    heard = Heard()

    @client.subscribe(created, group=created, rate=50, concurrency=8, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        times.append(time.monotonic())
        heard(message)

    fill(client, created, 120)
    with running(client):
        heard.wait(120)
    # 50 a second, and what a tenth of a second may have left over.
    for begin in times:
        assert sum(begin <= at < begin + 1 for at in times) <= 56


def test_no_more_are_in_flight_than_asked_for_and_the_backlog_stays_in_the_queue(
    broker: BrokerProcess, admin: AdminClient, client: penstock.Client, topic: str
) -> None:
    create(admin, topic)
    go_on, lock, running_now, most = threading.Event(), threading.Lock(), 0, 0

    @client.subscribe(topic, group=topic, concurrency=8, in_flight=3, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        nonlocal running_now, most
        with lock:
            running_now += 1
            most = max(most, running_now)
        go_on.wait(PATIENCE_S)
        with lock:
            running_now -= 1

    fill(client, topic, 50)
    with running(client):
        until(lambda: running_now == 3, "three are being handled")
        assert committed(broker.kafka, topic, topic).get(0, 0) == 0
        go_on.set()
        wait_until_committed(broker.kafka, topic, topic)
    assert most == 3


def test_a_subscription_that_was_paused_goes_on_with_nothing_lost_or_doubled(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    heard, go_on = Heard(), threading.Event()

    @client.subscribe(created, group=created, concurrency=2, in_flight=10, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        heard(message)
        go_on.wait(PATIENCE_S)

    fill(client, created, 300)
    with running(client):
        heard.wait(2)
        # Long enough for it to pause its partitions; what has been fetched is thrown away then.
        go_on.wait(1.5)
        go_on.set()
        heard.wait(300)
        wait_until_committed(broker.kafka, created, created, 2)
    assert len(heard.values) == len(set(heard.values)) == 300


def test_a_partition_that_was_given_away_while_it_was_paused_is_read_when_it_comes_back(
    broker: BrokerProcess, created: str
) -> None:
    heard, elsewhere, go_on, quick = Heard(), Heard(), threading.Event(), {"heartbeat.interval.ms": 100}
    with penstock.Client(broker.kafka, settings=quick) as first:

        @first.subscribe(created, group=created, in_flight=1, from_beginning=True)
        def handle(message: penstock.Message) -> None:
            heard(message)
            go_on.wait(PATIENCE_S)

        for partition in range(2):
            for number in range(5):
                first.send(created, f"{partition} {number}", partition=partition)
        with running(first):
            heard.wait(1)
            with penstock.Client(broker.kafka, settings=quick) as second:
                second.subscribe(created, elsewhere, group=created, from_beginning=True)
                with running(second):
                    elsewhere.wait(5)
            wait_until_joined(broker.kafka, created)
            for partition in range(2):
                first.send(created, f"{partition} last", partition=partition)
            go_on.set()
            until(lambda: {b"0 last", b"1 last"} <= set(heard.values), "both partitions are read")
