"""Moves of partitions between real brokers: started, held back, seen to progress, cancelled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from starlette.testclient import TestClient

from penstock.console.console import Console
from support.cluster import Cluster
from support.waiting import until
from support.zookeeper import ZooKeeperProcess

from .conftest import BASE, CLUSTER, app_of, console_settings, csrf_of, sign_in_once

HOME = f"/api/clusters/{CLUSTER}"
SIZE = 20 << 20


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeperProcess) -> Iterator[Cluster]:
    settings = {"broker.default_replication_factor": 1}
    with Cluster(tmp_path / "cluster", f"{zookeeper.address}/{tmp_path.name}", size=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def client(brokers: Cluster, tmp_path: Path) -> Iterator[TestClient]:
    console = Console(console_settings(brokers.brokers[1].kafka, tmp_path / "console"))
    with TestClient(app_of(console), base_url=BASE) as client:
        sign_in_once(console, client)
        client.headers["x-csrf-token"] = csrf_of(client)
        until(lambda: len(client.get(f"{HOME}/brokers").json()) == 2, "both brokers are known")
        yield client


def test_a_move_is_held_back_shows_its_progress_and_comes_to_an_end(brokers: Cluster, client: TestClient) -> None:
    assert client.post(f"{HOME}/topics", json={"name": "moved", "partitions": 1}).status_code == 201
    producer = Producer({"bootstrap.servers": brokers.brokers[1].kafka})
    for _ in range(SIZE >> 18):
        producer.produce("moved", os.urandom(1 << 18))
    assert producer.flush(60) == 0

    def partition() -> Any:
        return client.get(f"{HOME}/topics/moved/partitions").json()["items"]

    until(lambda: partition() and partition()[0]["end"] == SIZE >> 18, "the poller has seen the topic")
    (home,) = partition()[0]["replicas"]
    away = 3 - home
    held = client.put(f"{HOME}/moves/throttle", json={"bytes_per_s": 200_000})
    assert held.json() == {"bytes_per_s": {"1": 200_000, "2": 200_000}}, held.text
    moves = {"moves": [{"topic": "moved", "partition": 0, "replicas": [away]}]}
    assert client.post(f"{HOME}/moves", json=moves).json()[0]["is_done"]

    def arrived() -> Any:
        (row,) = client.get(f"{HOME}/moves").json()
        return row

    until(lambda: (arrived()["arrived_bytes"] or 0) > 0, "some of it has arrived")
    row = arrived()
    assert row["move"]["adding"] == [away] and 0 < row["arrived_bytes"] < row["size_bytes"]
    assert row["size_bytes"] >= SIZE
    first = row["arrived_bytes"]
    until(lambda: arrived()["arrived_bytes"] > first, "more of it has arrived")
    let_go = client.put(f"{HOME}/moves/throttle", json={"bytes_per_s": None})
    assert let_go.json() == {"bytes_per_s": {"1": None, "2": None}}
    until(lambda: client.get(f"{HOME}/moves").json() == [], "the move has ended")
    until(lambda: partition()[0]["replicas"] == [away], "the poller has seen where the partition is")
    told = client.get("/api/audit", params={"operation": "moves."}).json()["items"]
    assert [each["operation"] for each in told] == ["moves.set_throttle", "moves.start", "moves.set_throttle"]


def test_a_move_that_is_cancelled_leaves_the_partition_where_it_was(brokers: Cluster, client: TestClient) -> None:
    assert client.post(f"{HOME}/topics", json={"name": "stays", "partitions": 1}).status_code == 201
    producer = Producer({"bootstrap.servers": brokers.brokers[1].kafka})
    for _ in range(8):
        producer.produce("stays", os.urandom(1 << 18))
    assert producer.flush(60) == 0
    until(lambda: client.get(f"{HOME}/topics/stays/partitions").json()["items"], "the poller has seen the topic")
    (row,) = client.get(f"{HOME}/topics/stays/partitions").json()["items"]
    client.put(f"{HOME}/moves/throttle", json={"bytes_per_s": 0})
    moves = {"moves": [{"topic": "stays", "partition": 0, "replicas": [3 - row["replicas"][0]]}]}
    assert client.post(f"{HOME}/moves", json=moves).json()[0]["is_done"]
    until(lambda: len(client.get(f"{HOME}/moves").json()) == 1, "the move is shown")
    cancelled = client.post(f"{HOME}/moves/cancellation", json={"partitions": [{"topic": "stays", "partition": 0}]})
    assert cancelled.json()[0]["is_done"]
    until(lambda: client.get(f"{HOME}/moves").json() == [], "the move is gone")

    def replicas() -> Any:
        return client.get(f"{HOME}/topics/stays/partitions").json()["items"][0]["replicas"]

    until(lambda: replicas() == row["replicas"], "the poller has seen where the partition is")
