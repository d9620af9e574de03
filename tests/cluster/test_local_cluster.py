"""A cluster as `make cluster` starts it, and the commands that look at its brokers and empty one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.commands import complaint, said, told
from support.ports import first_of_free_ports
from support.programs import PENSTOCK, dying_with_us, environment, run
from support.waiting import until

Penstock = Callable[..., CompletedProcess[bytes]]


class LocalCluster:
    """Three brokers and their ZooKeeper, as children of one process."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "output"
        self.port = first_of_free_ports(7)
        options = {
            "--data": folder / "cluster",
            "--port": self.port,
            "--http": self.port + 3,
            "--zookeeper": self.port + 6,
            "--away": 3,
        }
        command = [sys.executable, "-m", "penstock.cli.serve.local_cluster"]
        for option, value in options.items():
            command += [option, str(value)]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                dying_with_us(command), stdout=output, stderr=output, env=environment(), start_new_session=True
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_until_ready(self) -> LocalCluster:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.output
            return "A cluster is ready." in self.output

        until(is_ready, "the cluster is ready", patience_s=60)
        return self

    def pids(self) -> dict[str, int]:
        """Of the processes that were started first, by name."""
        lines = [line for line in self.output.splitlines() if " pid " in line]
        return {line[:16].strip(): int(line.rpartition(" ")[2]) for line in lines}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("local"))
    try:
        yield made.wait_until_ready()
    finally:
        made.stop()


@pytest.fixture
def penstock(cluster: LocalCluster) -> Penstock:
    def call(*arguments: str, stdin: bytes = b"") -> CompletedProcess[bytes]:
        return run([PENSTOCK, *arguments, "-b", f"127.0.0.1:{cluster.port}"], stdin)

    return call


def brokers(penstock: Penstock) -> dict[int, dict[str, Any]]:
    return {broker["id"]: broker for broker in told(penstock("broker", "list", "--json"))}


def test_brokers_are_listed_with_the_controller_among_them(cluster: LocalCluster, penstock: Penstock) -> None:
    found = brokers(penstock)
    assert [broker["state"] for broker in found.values()] == ["alive"] * 3
    assert [broker["address"] for broker in found.values()] == [f"127.0.0.1:{cluster.port + n}" for n in range(3)]
    assert sum(broker["controller"] for broker in found.values()) == 1
    assert "CONTROLLER" in said(penstock("broker", "list"))


def test_a_killed_broker_is_listed_as_such_and_comes_back(cluster: LocalCluster, penstock: Penstock) -> None:
    os.kill(cluster.pids()["broker 3"], signal.SIGKILL)
    # Until its lease ends it counts as alive, and does not answer.
    assert brokers(penstock)[3]["state"] in ("silent", "away")
    # Once its lease has ended, nothing tells of a broker that has no replicas.
    until(lambda: brokers(penstock).get(3, {}).get("state") == "alive", "broker 3 is back")


def test_a_broker_is_described_with_what_it_has(penstock: Penstock) -> None:
    said(penstock("topic", "create", "described", "--partitions", "3"))
    described = told(penstock("broker", "describe", "2", "--json"))
    held = [each for each in described["partitions"] if each["topic"] == "described"]
    assert [each["partition"] for each in held] == [0, 1, 2]
    assert sum(each["leads"] for each in held) == 1
    assert "described" in said(penstock("broker", "describe", "2"))
    assert "there is no broker 7; there are 1, 2, 3" in complaint(penstock("broker", "describe", "7"))


def test_a_drained_broker_is_empty_and_a_drain_ends(cluster: LocalCluster, penstock: Penstock) -> None:
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.port}"})
    client.create_topics([NewTopic("drained", 4, 2)])["drained"].result()
    said(penstock("send", "drained", *(f"message {number}" for number in range(10))))
    # A topic with a replica on every broker has nowhere to go.
    said(penstock("topic", "delete", "described", "--yes"))
    assert "broker 3 is empty" in said(penstock("broker", "drain", "3", "--wait"))
    assert brokers(penstock)[3]["state"] == "draining"
    assert brokers(penstock)[3]["replicas"] == 0
    partitions = client.list_topics(timeout=10).topics["drained"].partitions
    assert all(sorted(partition.replicas) == [1, 2] for partition in partitions.values())
    assert told(penstock("broker", "undrain", "3", "--json")) == {"id": 3, "draining": False, "replicas": 0}
    assert brokers(penstock)[3]["state"] == "alive"
    lines = said(penstock("tail", "drained")).splitlines()
    assert len(lines) == 10


def test_leaders_are_elected_by_a_standard_client(cluster: LocalCluster) -> None:
    from confluent_kafka import ElectionType

    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.port}"})
    client.create_topics([NewTopic("elected", 1, 3)])["elected"].result()
    at = TopicPartition("elected", 0)
    result = client.elect_leaders(ElectionType.PREFERRED, [at]).result()
    assert result[at].code() == 84, "an election is not needed"


def test_a_cluster_whose_ports_are_taken_is_not_started(cluster: LocalCluster, tmp_path: Path) -> None:
    options = ["--data", str(tmp_path), "--port", str(cluster.port), "--zookeeper", str(cluster.port + 6)]
    done = run([sys.executable, "-m", "penstock.cli.serve.local_cluster", *options])
    assert f"port {cluster.port + 6} is in use" in complaint(done)


def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path).wait_until_ready()
    pids = made.pids().values()
    assert len(pids) == 4
    assert made.stop() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert all('"is_clean": true' in life.read_text() for life in tmp_path.glob("cluster/broker-*/life.json"))
