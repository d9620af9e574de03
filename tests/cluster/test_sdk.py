"""A subscription of the SDK on three brokers: whoever is killed, every message is handled or a dead letter, retries and
delays come when they should, and an id is handled once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import penstock
from penstock.sdk.dedup.store import Dedup, MemoryStore
from penstock.sdk.headers import DELIVER_AT, value_of
from penstock.sdk.topic_names import retry_topic
from support.cluster import Cluster
from support.crew import SETTINGS as GROUP_SETTINGS
from support.foreign import values_in
from support.receiving import wait_until_committed
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    **GROUP_SETTINGS,
    "cluster.lease_ms": 2_000,
    "cluster.lag_time_max_ms": 2_000,
    "topic.min.insync.replicas": 2,
}
PARTITIONS = 3
RETRIES = penstock.Retries(first="300ms", factor=2, attempts=3)
BEAT_S = 0.005
DUE = "due"
MORE = 150
"""So many messages that are sent after something has happened show that all goes on."""


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings=SETTINGS) as running:
        yield running
        for number, broker in running.brokers.items():
            assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# What becomes of a message goes by its number.


def is_delayed(number: int) -> bool:
    return number % 5 == 0


def is_sent_twice(number: int) -> bool:
    return number % 10 == 3


def fails_once(number: int) -> bool:
    return number % 10 in (1, 5)


def is_hopeless(number: int) -> bool:
    return number % 50 == 7


class Sender:
    """Sends numbers until it is stopped, whether or not the ones before were answered."""

    def __init__(self, client: penstock.Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.futures: list[Future[penstock.Receipt]] = []
        self.sent = 0
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S):
            number = self.sent
            delay_ms = 200 + number % 1000 if is_delayed(number) else 0
            delay = f"{delay_ms}ms" if delay_ms else None
            for _ in range(2 if is_sent_twice(number) else 1):
                due = {DUE: str(now_ms() + delay_ms)}
                self.futures.append(
                    self._client.send_soon(
                        self._topic, f"{number}", key=f"{number % 7}", biz_id=f"{number}", headers=due, delay=delay
                    )
                )
            self.sent += 1


class Handler:
    """Notes what it is given, and what it has brought to an end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.attempts: dict[int, set[int]] = defaultdict(set)
        self.done: Counter[int] = Counter()
        self.early: list[int] = []

    def __call__(self, message: penstock.Message) -> None:
        number, now = int(message.value or b""), now_ms()
        # The sender has said when it is due, and for delays and retries the broker has.
        dues = [int(due) for name in (DUE, DELIVER_AT) if (due := value_of(message.headers, name)) is not None]
        with self._lock:
            self.attempts[number].add(message.attempt)
            if now < max(dues):
                self.early.append(number)
        if is_hopeless(number) or (fails_once(number) and message.attempt == 1):
            raise ValueError(f"{number} fails")
        with self._lock:
            self.done[number] += 1

    def is_beyond(self, number: int) -> bool:
        with self._lock:
            return max(self.done, default=0) > number

    def all_done(self) -> Counter[int]:
        with self._lock:
            return Counter(self.done)


def test_a_subscription_goes_on_when_the_leader_of_its_topic_and_then_its_coordinator_are_killed(
    cluster: Cluster, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(PATIENCE_S)
    handler = Handler()
    with penstock.Client(cluster.kafka) as application, penstock.Client(cluster.kafka) as sending:
        application.subscribe(
            topic, handler, group=topic, retries=RETRIES, dedup=Dedup(MemoryStore()), from_beginning=True
        )
        application.start()
        sender = Sender(sending, topic)

        def wait_for_more() -> None:
            wanted = sender.sent + MORE
            until(lambda: handler.is_beyond(wanted), f"message {wanted} is handled", 2 * PATIENCE_S)

        wait_for_more()
        for victim in (cluster.leader, cluster.coordinator_of_group):
            killed = victim(topic)
            cluster.kill(killed)
            wait_for_more()
            cluster.start_again(killed)
            cluster.wait_until_whole()
        wait_for_more()
        sender.stop()

        assert [error for future in sender.futures if (error := future.exception(2 * PATIENCE_S))] == []
        hopeless = {number for number in range(sender.sent) if is_hopeless(number)}
        good = set(range(sender.sent)) - hopeless
        until(lambda: handler.all_done().keys() >= good, "every message is handled", 2 * PATIENCE_S)
        dead_topic = f"{topic}.dead"
        until(lambda: set(values_in(cluster.kafka, dead_topic)) >= {b"%d" % number for number in hopeless}, dead_topic)
        wait_until_committed(cluster.kafka, topic, topic, PARTITIONS)
        wait_until_committed(cluster.kafka, topic, retry_topic(topic, topic), PARTITIONS)
        letters = {int(value or b"") for value in values_in(cluster.kafka, dead_topic)}
    # Nothing lost, nothing given up that could be handled, each id handled once.
    assert letters == hopeless
    assert handler.done == Counter(good)
    assert handler.early == []
    # What has failed came again, until it went well or was given up.
    assert {number for number in good if fails_once(number) and not handler.attempts[number] >= {1, 2}} == set()
    assert {number for number in hopeless if handler.attempts[number] != {1, 2, 3}} == set()
