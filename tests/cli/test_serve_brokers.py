"""`penstock serve --brokers`: several brokers of one host, on a real ZooKeeper, with a real client."""

from __future__ import annotations

import json
import os
import signal
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.commands import complaint
from support.host import Host, is_gone
from support.programs import PENSTOCK, run
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

NewHost = Callable[..., Host]

TOPIC = "orders"
PARTITIONS = 3
MESSAGES = 3_000


@pytest.fixture
def coordinator(zookeeper: ZooKeeperProcess) -> str:
    return f"{zookeeper.address}/tests/{uuid.uuid4().hex}"


@pytest.fixture
def new_host(coordinator: str, tmp_path: Path) -> Iterator[NewHost]:
    made: list[Host] = []

    def start(count: int, **named: object) -> Host:
        made.append(Host(tmp_path, coordinator, count, **named))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for host in made:
        pids = host.pids() if host.process.poll() is None else {}
        host.close()
        until(lambda gone=pids: all(map(is_gone, gone.values())), "no broker is left behind")
        assert "Traceback" not in host.log, host.log


def ended_well(host: Host) -> bool:
    lives = [json.loads(life.read_text()) for life in host.data.glob("broker-*/life.json")]
    return len(lives) == host.count and all(life["is_clean"] for life in lives)


def test_a_killed_broker_comes_back_with_all_that_was_acknowledged_and_all_stop_in_order(new_host: NewHost) -> None:
    host = new_host(3).wait_until_ready()
    client = AdminClient({"bootstrap.servers": host.kafka})
    described = client.describe_cluster().result()
    assert {node.id: (node.port, node.rack) for node in described.nodes} == {
        number + 1: (host.port + number, socket.gethostname()) for number in range(3)
    }
    kept = {"min.insync.replicas": "2"}
    client.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=kept)])[TOPIC].result()

    acknowledged: list[bytes] = []
    producer = Producer({"bootstrap.servers": host.kafka, "enable.idempotence": True, "linger.ms": 1})

    def note(error: object, message: object) -> None:
        assert error is None
        acknowledged.append(message.value())  # type: ignore[attr-defined]

    before = host.pids()
    for number in range(MESSAGES):
        producer.produce(TOPIC, str(number).encode(), partition=number % PARTITIONS, on_delivery=note)
        producer.poll(0)
        if number == MESSAGES // 2:
            os.kill(before[2], signal.SIGKILL)
    until(lambda: 'process is ready again name="broker 2"' in host.log, "broker 2 is back")
    assert producer.flush(30) == 0
    assert len(acknowledged) == MESSAGES

    assert host.pids().keys() == before.keys()
    assert {number for number, pid in host.pids().items() if pid != before[number]} == {2}
    until(lambda: {node.id for node in client.describe_cluster().result().nodes} == {1, 2, 3}, "broker 2 is seen again")
    assert sorted(map(int, _read(host))) == list(range(MESSAGES))

    pids = host.pids()
    host.signal(signal.SIGTERM)
    assert host.wait() == 0
    assert all(map(is_gone, pids.values()))
    assert host.said("stopping") == [3, 2, 1]
    assert sorted(host.said("stopped")) == [1, 2, 3]
    assert ended_well(host)


def test_the_supervisor_tells_systemd_of_its_brokers_and_they_do_not(new_host: NewHost, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE_S)
        told = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "200000"}
        host = new_host(2, env=told).wait_until_ready()
        ready = systemd.recv(1000).decode()
        assert "READY=1" in ready and "2 brokers" in ready
        assert systemd.recv(1000) == b"WATCHDOG=1"
        for pid in host.pids().values():
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
        host.signal(signal.SIGTERM)
        assert host.wait() == 0


def test_brokers_do_not_outlive_their_supervisor(new_host: NewHost, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[logging]\nformat = "json"\n')
    host = new_host(2, options=["--config", str(file)], env={"PENSTOCK_LOGGING_LEVEL": "info"}).wait_until_ready()
    pids = host.pids()
    assert len(pids) == 2
    host.process.kill()
    until(lambda: all(map(is_gone, pids.values())), "the brokers are gone")
    assert ended_well(host), "they stopped in an orderly way"
    said = [json.loads(line) for line in host.log.splitlines()]
    stopped = {event["process"] for event in said if event["message"] == "stopped"}
    assert stopped == {"broker-1", "broker-2"}, "the file holds for all, and each says who it is"


def test_a_second_ctrl_c_kills_what_does_not_stop(new_host: NewHost) -> None:
    host = new_host(2).wait_until_ready()
    pids = host.pids()
    os.kill(pids[2], signal.SIGSTOP)
    host.signal(signal.SIGINT)
    until(lambda: "cli.serve.supervisor  stopping" in host.log, "the supervisor is stopping")
    host.signal(signal.SIGINT)
    assert host.wait() == 1
    assert all(map(is_gone, pids.values()))


def test_a_broker_that_cannot_start_at_all_is_not_tried_again(new_host: NewHost) -> None:
    host = new_host(2)
    with socket.create_server(("127.0.0.1", host.port + 1)):
        assert host.wait() == 1
    assert f"broker.listen = '127.0.0.1:{host.port + 1}' cannot be listened on" in host.log
    assert "penstock: broker 2 could not start: ended with status 1\n" in host.log
    assert "restarting it" not in host.log
    assert host.output == ""


def test_several_brokers_without_a_coordinator_are_refused(tmp_path: Path) -> None:
    done = run([PENSTOCK, "serve", "--brokers", "2", "--data", str(tmp_path)])
    assert "set --coordinator zk://HOST:PORT/PATH" in complaint(done)


def _read(host: Host) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": host.kafka,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
        }
    )
    found: list[bytes] = []

    def all_read() -> bool:
        for message in consumer.consume(MESSAGES, timeout=0.5):
            assert message.error() is None
            found.append(message.value() or b"")
        ends = [consumer.get_watermark_offsets(TopicPartition(TOPIC, each))[1] for each in range(PARTITIONS)]
        return len(found) >= sum(ends)

    consumer.subscribe([TOPIC])
    try:
        until(all_read, "everything is read")
    finally:
        consumer.close()
    return found
