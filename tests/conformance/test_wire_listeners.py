"""A broker with two listeners: what clients of each are told, and that each has its own limit of connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.protocol import apis
from penstock.protocol.messages.describe_cluster import DescribeClusterRequest
from penstock.protocol.messages.find_coordinator import GROUP, FindCoordinatorRequest
from penstock.protocol.messages.metadata import MetadataRequest
from support.broker_process import BrokerProcess
from support.ports import free_ports
from support.wire import Wire

CONNECTIONS = 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "broker", {"limits.connections": CONNECTIONS})
    process.inter_broker = f"127.0.0.1:{free_ports(1)[0]}"
    try:
        yield process.start()
        assert process.stop() == 0
    finally:
        process.kill()


def test_a_client_is_told_the_endpoint_of_the_listener_that_it_came_through(broker: BrokerProcess) -> None:
    for address in (broker.address, broker.inter_broker_address):
        with Wire(address) as wire:
            (told,) = wire.ask(apis.METADATA, 12, MetadataRequest(topics=()))["brokers"]
            assert (told["host"], told["port"]) == address
            (told,) = wire.ask(apis.DESCRIBE_CLUSTER, 1, DescribeClusterRequest())["brokers"]
            assert (told["host"], told["port"]) == address
            asked = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=("group",))
            (told,) = wire.ask(apis.FIND_COORDINATOR, 4, asked)["coordinators"]
            assert (told["error_code"], told["host"], told["port"]) == (0, *address)


def test_clients_cannot_take_the_connections_of_the_other_brokers(broker: BrokerProcess) -> None:
    taken = [Wire(broker.address) for _ in range(CONNECTIONS)]
    try:
        for wire in taken:
            wire.ask(apis.METADATA, 12, MetadataRequest(topics=()))
        with Wire(broker.address) as refused:
            assert refused.is_closed_by_broker()
        with Wire(broker.inter_broker_address) as wire:
            assert wire.ask(apis.METADATA, 12, MetadataRequest(topics=()))["brokers"]
    finally:
        for wire in taken:
            wire.socket.close()
