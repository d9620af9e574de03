"""What the tests of retired partitions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conftest import running_broker
from support.broker_process import BrokerProcess
from support.transactional import Protocol
from support.wire import Wire


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(broker.address) as connection:
        yield connection


@pytest.fixture(params=list(Protocol), ids=lambda protocol: protocol.name.lower())
def protocol(request: pytest.FixtureRequest) -> Protocol:
    found: Protocol = request.param
    return found


@pytest.fixture(scope="session")
def eager_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that looks all the time whether a retired partition can go."""
    with running_broker(tmp_path_factory.mktemp("broker"), {"log.retention_check_ms": 50}) as process:
        yield process
