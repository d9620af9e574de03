"""What the tests with confluent-kafka share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.waiting import PATIENCE_S


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
