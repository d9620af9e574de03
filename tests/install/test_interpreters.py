"""The package as users install it: from a wheel, outside the checkout, on every supported Python that is here."""

from __future__ import annotations

import re
import uuid
import zipfile
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from conftest import assert_no_inner_errors
from support.broker_process import BrokerProcess
from support.interpreters import ROOT, Environment, build_wheel, required_interpreter, supported_versions
from support.programs import run
from support.waiting import PATIENCE_S, until

CLIENT = ROOT / "tests" / "support" / "installed_client.py"
OUR_WARNING = re.compile(r"^\S*/penstock/\S+:\d+: \w+Warning.*$", re.MULTILINE)
ONLY_WHAT_IS_INSTALLED = {"PYTHONPATH": "", "PYTHONWARNINGS": "default"}
PARTITIONS = 3


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    sources = {path.relative_to(ROOT / "src") for path in (ROOT / "src" / "penstock").rglob("*") if path.is_file()}
    expected = {str(path) for path in sources if "__pycache__" not in path.parts}
    with zipfile.ZipFile(wheel) as contents:
        names = set(contents.namelist())
    described = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - described == expected
    assert {Path(name).name for name in described} >= {"METADATA", "entry_points.txt", "LICENSE"}


@pytest.mark.parametrize("version", supported_versions())
def test_a_broker_and_its_clients_work_from_the_wheel(version: str, wheel: Path, tmp_path: Path) -> None:
    installed = Environment.make(required_interpreter(version), tmp_path / "installed", wheel)
    broker = BrokerProcess(tmp_path / "broker", env=ONLY_WHAT_IS_INSTALLED, program=installed.program("penstock"))
    try:
        broker.start()
        pass_messages(broker)
        use_commands(broker, installed)
        use_sdk(broker, installed, version)
        broker.restart()
        # Those of the clients, and the one that a command has sent.
        assert len(consumed(broker, "orders", 2 * PARTITIONS + 1)) == 2 * PARTITIONS + 1
        assert broker.stop() == 0
    finally:
        broker.kill()
    assert_no_inner_errors(broker)
    assert OUR_WARNING.findall(broker.log) == []


def pass_messages(broker: BrokerProcess) -> None:
    """Through requests that are answered at once and through such that wait: for the disk, for data, for a group."""
    synced = NewTopic("orders", PARTITIONS, config={"flush.messages": "1"})
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([synced])["orders"].result(PATIENCE_S)
    plain = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True, "linger.ms": 50})
    transactional = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "installed"})
    transactional.init_transactions(PATIENCE_S)
    transactional.begin_transaction()
    for producer in (plain, transactional):
        for partition in range(PARTITIONS):
            producer.produce("orders", b"%d" % partition, partition=partition)
        assert producer.flush(PATIENCE_S) == 0
    transactional.commit_transaction(PATIENCE_S)
    assert consumed(broker, "orders", 2 * PARTITIONS) == sorted(2 * [b"%d" % number for number in range(PARTITIONS)])


def consumed(broker: BrokerProcess, topic: str, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": broker.kafka, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    values: list[bytes] = []

    def has_all() -> bool:
        for message in consumer.consume(count, 1):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
        return len(values) >= count

    try:
        consumer.subscribe([topic])
        until(has_all, f"{count} messages of {topic} have come")
    finally:
        consumer.close()
    return sorted(values)


def use_commands(broker: BrokerProcess, installed: Environment) -> None:
    def penstock(*arguments: str) -> str:
        command = [installed.program("penstock"), *arguments, "--bootstrap", broker.kafka]
        done = run(command, env=ONLY_WHAT_IS_INSTALLED)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    penstock("topic", "create", "eu", "--view-of", "orders", "--tags", "eu")
    penstock("send", "orders", "seen", "--partition", "0", "-H", "penstock-tags=eu")
    assert penstock("tail", "eu", "--from", "beginning", "--format", "%v") == "seen\n"


def use_sdk(broker: BrokerProcess, installed: Environment, version: str) -> None:
    done = run([installed.program("python"), "-W", "default", str(CLIENT), broker.kafka], env=ONLY_WHAT_IS_INSTALLED)
    assert done.returncode == 0, done.stderr.decode()
    assert OUR_WARNING.findall(done.stderr.decode()) == []
    used_version, used_package = done.stdout.decode().split()
    assert used_version == version
    assert Path(used_package).is_relative_to(installed.folder)
