"""The walks of ARCHITECTURE.md, compared with the modules that a real record, member and read pass."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conftest import assert_no_inner_errors
from penstock.records.records import Record, build_batch
from support.broker_process import BrokerProcess
from support.cluster import Cluster
from support.programs import environment
from support.spark import send, small_settings
from support.waiting import PATIENCE_S, until
from support.walks import Trace, passed_by_all, shown, written_walk
from support.wire import Wire, batch_of
from support.zookeeper import ZooKeeperProcess

SOCKET = "net/connection.py"
JOINING = "broker/handlers/groups.py"
DELIVERY = "delay/delivery.py"
FOLLOWER = "replication/replica_fetcher.py"
SPARK = ("pipeline/source/datasource.py", "pipeline/source/tables.py")

READ = """
import json
import sys
from pathlib import Path
from penstock.pipeline.session import SparkOptions, start

folder, kafka, topic, settings = sys.argv[1:]
options = SparkOptions(folder=Path(folder), master="local[1]", memory="500m", settings=json.loads(settings))
spark = start("walk", options)
reader = spark.read.format("penstock").option("kafka.bootstrap.servers", kafka).option("subscribe", topic)
assert [bytes(row.value) for row in reader.load().collect()] == [b"value"]
spark.stop()
"""
READ_S = 10 * PATIENCE_S
"""Spark starts four processes of Python, and the tracer slows each."""


@pytest.fixture
def traced(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., tuple[BrokerProcess, Trace]]:
    """Starts a broker that traces what comes from the doors given."""

    def start(*doors: str) -> tuple[BrokerProcess, Trace]:
        trace = Trace(tmp_path / "trace", *doors)
        process = BrokerProcess(tmp_path / "broker", env=trace.env)
        request.addfinalizer(process.kill)
        return process.start(), trace

    return start


def check_walk(title: str, entered: list[str]) -> None:
    """Tasks run side by side, so only which modules were entered is compared, not in which order."""
    found, written = set(shown(entered, passed_by_all())), set(written_walk(title))
    assert (sorted(found - written), sorted(written - found)) == ([], []), "entered, not written; written, not entered"


def test_a_record_in_and_out(traced: Callable[..., tuple[BrokerProcess, Trace]], topic: str) -> None:
    broker, trace = traced(SOCKET)
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"the first makes the files"))
        trace.begin(broker.pid)
        assert wire.produce(topic, batch_of(b"value"))["base_offset"] == 1
        assert b"value" in wire.fetch(topic, 1)["records"]
        check_walk("A record in and out", trace.entered(broker.pid))
    assert_no_inner_errors(broker)


def test_a_member_joins_a_group(traced: Callable[..., tuple[BrokerProcess, Trace]], topic: str) -> None:
    broker, trace = traced(JOINING)
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "walkers"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)  # the first record makes the files
    trace.begin(broker.pid)
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "the member has its partition")
    check_walk("A member joins a group", trace.entered(broker.pid))
    consumer.close()
    assert_no_inner_errors(broker)


def test_a_delayed_record(traced: Callable[..., tuple[BrokerProcess, Trace]], topic: str) -> None:
    broker, trace = traced(SOCKET, DELIVERY)
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        # The first makes the files.
        wire.produce(topic, delayed_batch())
        until(lambda: broker.metric("penstock_delayed_delivered_total") == 1, "the first was delivered")
        trace.begin(broker.pid)
        wire.produce(topic, delayed_batch())
        until(lambda: broker.metric("penstock_delayed_delivered_total") == 2, "the second was delivered")
        check_walk("A delayed record", trace.entered(broker.pid))
    assert_no_inner_errors(broker)


def delayed_batch() -> bytes:
    now_ms = int(time.time() * 1000)
    headers = (("penstock-delay", b"200ms"),)
    return bytes(build_batch([Record(None, b"value", headers, now_ms)]))


def test_a_replicated_record(tmp_path: Path, zookeeper: ZooKeeperProcess, topic: str) -> None:
    trace = Trace(tmp_path / "trace", SOCKET, FOLLOWER)
    tree = f"{zookeeper.address}/{uuid.uuid4().hex}"
    with Cluster(tmp_path / "cluster", tree, env=lambda number: trace.env) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.kafka})
        admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(PATIENCE_S)
        cluster.wait_until_whole()
        leader = cluster.brokers[cluster.leader(topic)]
        follower = next(broker for broker in cluster.brokers.values() if broker is not leader)
        with Wire(leader.address) as wire:
            # The first makes the files.
            assert wire.produce(topic, batch_of(b"first"))["base_offset"] == 0
            for broker in (leader, follower):
                trace.begin(broker.pid)
            assert wire.produce(topic, batch_of(b"value"))["base_offset"] == 1
        check_walk("A replicated record", trace.entered(follower.pid))


@pytest.mark.usefixtures("java")
def test_a_spark_read(tmp_path: Path, broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
    send(broker, topic, [b"value"])
    trace = Trace(tmp_path / "trace", *SPARK)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "spark"), broker.kafka, topic, json.dumps(small_settings())],
        env=environment(trace.env),
        capture_output=True,
        timeout=READ_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check_walk("A Spark read", trace.entered())
