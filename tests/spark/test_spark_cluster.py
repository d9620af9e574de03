"""The same command on a real cluster: master and two workers, executors killed under way."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.class_archive import quick_jvm
from support.lake import lake_values
from support.programs import PENSTOCK, dying_with_us, environment
from support.spark import send
from support.spark_cluster import SparkCluster

_PATIENCE_S = 180

pytestmark = pytest.mark.usefixtures("java")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    found = SparkCluster(tmp_path)
    try:
        yield found.start()
    finally:
        found.close()


def test_the_archive_runs_on_a_cluster_and_survives_the_loss_of_an_executor(
    broker: BrokerProcess, admin: AdminClient, topic: str, tmp_path: Path, cluster: SparkCluster
) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    sent = [b"%05d" % number for number in range(2000)]
    for number in range(2):
        send(broker, topic, sent, number)
    lake = tmp_path / "lake"
    command = [PENSTOCK, "pipeline", "archive", "--bootstrap", broker.kafka, "--topics", topic, "--lake", str(lake)]
    command += ["--once", "--max-offsets", "1000", "--master", cluster.master, "--memory", "600m"]
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.defaultJavaOptions": quick_jvm(),
        "spark.executor.defaultJavaOptions": quick_jvm(),
        "spark.executor.memory": "500m",
        "spark.executor.cores": "1",
        "spark.pyspark.python": str(cluster.python),
        "spark.executorEnv.PYTHONPATH": cluster.library,
    }
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    process = subprocess.Popen(
        dying_with_us(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    try:
        assert process.stdout is not None
        assert b"records" in process.stdout.readline()
        cluster.kill_an_executor()
        _, complaint = process.communicate(timeout=_PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, complaint.decode()
    assert lake_values(lake) == sent + sent
