"""One Spark for all tests that share it, small and quick to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from conftest import SHARED, NewStorage, running_broker
from support.broker_process import BrokerProcess
from support.class_archive import quick_spark
from support.spark import small_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts all files that share the Spark session on one worker: starting a JVM costs more than most of their tests."""
    files = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    for item in items:
        if item.path in files:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from penstock.pipeline.session import SparkOptions, start

    # A task may fail once.
    folder = tmp_path_factory.mktemp("spark")
    options = SparkOptions(folder=folder, master="local[2,2]", memory="700m", settings=small_settings())
    with quick_spark(tmp_path_factory.mktemp("java")):
        session = start("penstock tests", options)
    yield session
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    # Else its JVM would run until Python ends.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, broker_storage: NewStorage) -> Iterator[BrokerProcess]:
    """One for each file: whoever asks for all topics shall not have to read those of other tests."""
    with running_broker(tmp_path_factory.mktemp("broker"), SHARED, broker_storage()) as process:
        yield process


@pytest.fixture
def make_topic(broker: BrokerProcess, admin: AdminClient, topic: str) -> Callable[..., str]:
    """Makes the test's topic, or one of the given name."""

    def make(partitions: int = 1, name: str = topic, **config: str) -> str:
        # Tests send old times, and retention would go by them; a view has the retention of its base.
        kept = {} if "penstock.view.of" in config else {"retention.ms": "-1"}
        admin.create_topics([NewTopic(name, partitions, 1, config=kept | config)])[name].result(30)
        return name

    return make
