"""kill -9 of archivers, and two at once: every record is in the lake, once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.pipeline.archive.advisory_lock import ArchiverAtWorkError, archiver_lock
from penstock.pipeline.archive.archiver import ArchiveOptions
from penstock.pipeline.lake.delta import LakeLocation
from penstock.pipeline.topics.kafka import Brokers
from penstock.pipeline.topics.options import TopicSelection
from spark.archive_kills import run
from support.broker_process import BrokerProcess
from support.lake import lake_values
from support.programs import PENSTOCK, dying_with_us, environment
from support.spark import send, small_spark
from support.waiting import until

_PATIENCE_S = 120

pytestmark = pytest.mark.usefixtures("java")


def test_an_archiver_that_is_killed_at_every_step_loses_and_doubles_nothing(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    counts = run(broker.kafka, topic, tmp_path / "lake", rounds=8, seed=1)
    print(counts)
    assert counts.sent == counts.archived == 6000
    assert counts.killed >= 4
    assert (counts.lost, counts.doubled, counts.altered) == (0, 0, 0), counts


def test_the_command_goes_on_where_it_was_killed_and_only_who_takes_over_replaces_another(
    broker: BrokerProcess,
    admin: AdminClient,
    topic: str,
    tmp_path: Path,
    started: list[subprocess.Popen[bytes]],
) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    sent = [b"%05d" % number for number in range(3000)]
    for number in range(2):
        send(broker, topic, sent, number)
    command = [PENSTOCK, "pipeline", "archive", "--bootstrap", broker.kafka, "--topics", topic]
    command += ["--lake", str(tmp_path / "lake"), "--max-offsets", "1000", *small_spark()]
    first = _start([*command, "--interval", "0.1"])
    started.append(first)
    assert first.stdout is not None
    # Killed with most of it undone: the driver's process, whose JVM ends with it.
    assert b"version 2: 1000 records" in first.stdout.readline()
    first.kill()
    first.wait(_PATIENCE_S)
    second = _start([*command, "--interval", "0.1"])
    started.append(second)
    assert second.stdout is not None
    assert b"records" in second.stdout.readline()
    third = _start([*command, "--once", "--take-over"])
    started.append(third)
    _, complaint = second.communicate(timeout=_PATIENCE_S)
    said, _ = third.communicate(timeout=_PATIENCE_S)
    assert third.returncode == 0, said
    assert second.returncode == 1
    assert b"another archiver named archive has started" in complaint
    assert lake_values(tmp_path / "lake") == sent + sent


def test_a_second_archiver_is_refused_while_the_first_is_at_work(
    broker: BrokerProcess, admin: AdminClient, topic: str, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    options = ArchiveOptions(
        {"bootstrap.servers": broker.kafka}, TopicSelection(topics=(topic,)), LakeLocation(str(tmp_path))
    )
    brokers = Brokers(options.kafka)
    with archiver_lock(options, take_over=False):
        group = until(lambda: _group_at_work(admin, brokers), "the first is seen")
        assert group is not None
        with pytest.raises(ArchiverAtWorkError, match=f"named archive is at work on {tmp_path} .*--take-over"):
            archiver_lock(options, take_over=False).__enter__()
        # Under another name, or on another lake, it is none of its business.
        for other in (replace(options, name="other"), replace(options, location=LakeLocation(f"{tmp_path}-other"))):
            with archiver_lock(other, take_over=False):
                pass
    assert brokers.members(group) == []
    with archiver_lock(options, take_over=False):
        pass


def _group_at_work(admin: AdminClient, brokers: Brokers) -> str | None:
    groups = [each.group_id for each in admin.list_consumer_groups().result().valid]
    return next((each for each in groups if ".at-work." in each and brokers.members(each)), None)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that end with the test, however it ends."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(dying_with_us(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
