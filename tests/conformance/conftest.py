"""What the tests with confluent-kafka share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from conftest import LOG_FILES
from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.stores import DATABASES
from support.waiting import PATIENCE_S

ON_DATABASES = {
    "test_confluent.py": DATABASES,
    "test_wire_fetch.py": DATABASES,
    "test_wire_produce.py": ["mariadb"],
}
"""Files whose tests are run with log files and with these; `--storage` runs all files with one."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    databases = ON_DATABASES.get(metafunc.definition.path.name)
    if databases and "broker_storage" in metafunc.fixturenames and metafunc.config.getoption("--storage") is None:
        metafunc.parametrize("broker_storage", [LOG_FILES, *databases], indirect=True, scope="session")


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    """A topic of three partitions."""
    admin.create_topics([NewTopic(topic, num_partitions=3, replication_factor=1)])[topic].result(PATIENCE_S)
    return topic


@pytest.fixture
def consumer(broker: BrokerProcess) -> Iterator[Consumer]:
    client = consumer_of(broker)
    yield client
    client.close()
