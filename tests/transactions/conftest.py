"""What the tests over the wire share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.broker_process import BrokerProcess
from support.transactional import Place, Protocol
from support.wire import Wire


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(broker.address) as connection:
        yield connection


@pytest.fixture
def places(wire: Wire, topic: str) -> list[Place]:
    """The three partitions of a topic of the test's own; its name is also good for ids and groups."""
    wire.create_topic(topic, partitions=3)
    return [(topic, partition) for partition in range(3)]


@pytest.fixture
def place(places: list[Place]) -> Place:
    return places[0]


@pytest.fixture(params=list(Protocol), ids=lambda protocol: protocol.name.lower())
def protocol(request: pytest.FixtureRequest) -> Protocol:
    found: Protocol = request.param
    return found
