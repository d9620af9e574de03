"""What a leader answers that was deposed and has not heard of it: nothing that is older than what its successor has
acknowledged.

Every broker is written to and asked all the time, over connections of their own: as by many clients, some of which have
not heard of another leader.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cluster.metadata import OFFSETS_TOPIC
from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_fetch import OffsetFetchRequest
from support.cluster import Cluster
from support.waiting import PATIENCE_S, until
from support.wire import Wire, batch_of, produce_request
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    "cluster.lease_ms": 2_000,
    "cluster.lag_time_max_ms": 2_000,
    "groups.offsets_partitions": 1,
    "broker.default_replication_factor": 3,
}
ROUNDS = 3
FAULT_S = 2 * SETTINGS["cluster.lease_ms"] / 1000
"""Longer than any session lasts."""
TOPIC, GROUP = "orders", "workers"

Values = Mapping[int, int]
"""What has been written under a key; it only grows."""


@pytest.fixture
def cluster(own_zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "brokers", f"{own_zookeeper.address}/deposed", settings=SETTINGS, gates=True) as running:
        admin = AdminClient({"bootstrap.servers": running.kafka})
        admin.create_topics([NewTopic(TOPIC, 4, 3)])[TOPIC].result(2 * PATIENCE_S)
        running.coordinator_of_group(GROUP)
        running.wait_until_whole()
        yield running


class Talk:
    """Writes to and asks every broker, and notes answers that are too old."""

    def __init__(self, cluster: Cluster, write: Callable[[Wire, int], Values], read: Callable[[Wire], Values]) -> None:
        """`write` gets the number of the broker, and gives what was acknowledged; `read` what a broker answers."""
        self._cluster = cluster
        self._write, self._read = write, read
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(2 * len(cluster.numbers))
        self._running: list[Future[None]] = []
        self.acknowledged: Counter[int] = Counter()
        self.writes = 0
        self.answers = 0
        self.too_old: list[tuple[int, int, int, int]] = []
        """Broker, key, the value it told, and what was acknowledged before it was asked."""

    def __enter__(self) -> Talk:
        self._running = [
            self._pool.submit(work, number) for number in self._cluster.numbers for work in (self._tell, self._ask)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._pool.shutdown()
        for each in self._running:
            each.result()

    def _tell(self, number: int) -> None:
        with Wire(self._cluster.brokers[number].address) as wire:
            while not self._enough.wait(0.005):
                for key, value in self._write(wire, number).items():
                    self.acknowledged[key] = max(self.acknowledged[key], value)
                    self.writes += 1

    def _ask(self, number: int) -> None:
        with Wire(self._cluster.brokers[number].address) as wire:
            while not self._enough.wait(0.005):
                before = dict(self.acknowledged)
                for key, value in self._read(wire).items():
                    self.answers += 1
                    if value < before.get(key, 0):
                        self.too_old.append((number, key, value, before[key]))


def go_through(talk: Talk, begin: Callable[[], None], end: Callable[[], None], cluster: Cluster) -> None:
    """A fault that lasts longer than a lease, some times; another leader acknowledges and answers meanwhile."""
    for _ in range(ROUNDS):
        begun_at, served = time.monotonic(), served_since(talk)
        begin()
        until(lambda b=begun_at, s=served: time.monotonic() > b + FAULT_S and s(), "all is served", 2 * PATIENCE_S)
        end()
        cluster.wait_until_whole()


def served_since(talk: Talk) -> Callable[[], bool]:
    """Tells whether at least 50 writes were acknowledged and 50 questions answered since now."""
    writes, answers = talk.writes + 50, talk.answers + 50
    return lambda: talk.writes > writes and talk.answers > answers


def append(wire: Wire, number: int) -> Values:
    request = produce_request(TOPIC, batch_of(b"x")) | {"timeout_ms": 1000}
    (answer,) = wire.ask(apis.PRODUCE, 11, request)["responses"]
    (result,) = answer["partition_responses"]
    return {0: result["base_offset"] + 1} if result["error_code"] == Code.NONE else {}


def end_of_log(wire: Wire) -> Values:
    wanted = (ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP),)
    topics = (ListOffsetsTopic(name=TOPIC, partitions=wanted),)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
    (answer,) = wire.ask(apis.LIST_OFFSETS, 7, request)["topics"]
    (found,) = answer["partitions"]
    return {0: found["offset"]} if found["error_code"] == Code.NONE else {}


class Commits:
    """Commits 1, 2, 3 and so on through each broker, for a partition that goes by the broker's number."""

    def __init__(self) -> None:
        self._next: Counter[int] = Counter()

    def __call__(self, wire: Wire, number: int) -> Values:
        self._next[number] += 1
        partition = OffsetCommitRequestPartition(partition_index=number, committed_offset=self._next[number])
        topics = (OffsetCommitRequestTopic(name=TOPIC, partitions=(partition,)),)
        (answer,) = wire.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest(group_id=GROUP, topics=topics))["topics"]
        (found,) = answer["partitions"]
        return {number: self._next[number]} if found["error_code"] == Code.NONE else {}


def committed(wire: Wire) -> Values:
    answer = wire.ask(apis.OFFSET_FETCH, 7, OffsetFetchRequest(group_id=GROUP, topics=None))
    return {
        found["partition_index"]: found["committed_offset"]
        for topic in answer["topics"]
        for found in topic["partitions"]
        if answer["error_code"] == found["error_code"] == Code.NONE
    }


def test_the_end_of_a_log_does_not_go_back_when_zookeeper_has_stood_still(
    cluster: Cluster, own_zookeeper: ZooKeeperProcess
) -> None:
    """Without ZooKeeper leases end and brokers stop acknowledging, so what is served is counted afterwards."""
    with Talk(cluster, append, end_of_log) as talk:
        for _ in range(ROUNDS):
            own_zookeeper.pause()
            paused_at = time.monotonic()
            until(lambda at=paused_at: time.monotonic() > at + FAULT_S, "the leases end")
            served = served_since(talk)
            own_zookeeper.resume()
            until(served, "all is served", 2 * PATIENCE_S)
            cluster.wait_until_whole()
    assert talk.too_old == [], "broker, partition, told end, acknowledged before"


def test_the_end_of_a_log_does_not_go_back_when_its_leader_is_cut_off_from_zookeeper(cluster: Cluster) -> None:
    with Talk(cluster, append, end_of_log) as talk:
        go_through(talk, lambda: cluster.cut_off_from_tree(cluster.leader(TOPIC, 0)), cluster.repair, cluster)
    assert talk.too_old == [], "broker, partition, told end, acknowledged before"


def test_committed_offsets_do_not_go_back_when_their_coordinator_is_cut_off_from_zookeeper(cluster: Cluster) -> None:
    with Talk(cluster, Commits(), committed) as talk:
        go_through(talk, lambda: cluster.cut_off_from_tree(cluster.leader(OFFSETS_TOPIC, 0)), cluster.repair, cluster)
    assert talk.too_old == [], "broker, partition, told offset, committed before"
