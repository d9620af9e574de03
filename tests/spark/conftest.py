"""One Spark for all tests of a process, small and quick to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from conftest import running_broker
from support.broker_process import BrokerProcess
from support.programs import required_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from penstock.pipeline.session import SparkWish, start

    required_program("java")
    # A task may fail once.
    wish = SparkWish(folder=tmp_path_factory.mktemp("spark"), master="local[2,2]", memory="700m", settings=SMALL)
    session = start("penstock tests", wish)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for each file: whoever asks for all topics shall not have to read those of other tests."""
    with running_broker(tmp_path_factory.mktemp("broker")) as process:
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
