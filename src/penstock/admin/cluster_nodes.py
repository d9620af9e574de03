"""The brokers of a cluster, read without its topics.

The client library requests brokers only together with the metadata of all topics, or of one named topic. A request with
an empty list of topics returns brokers alone; we send it over a socket of our own (`wire`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.admin.connection import AdminConnection, Deadline
from penstock.admin.errors import UnreachableError
from penstock.admin.wire import call
from penstock.config.address import Address
from penstock.protocol import apis
from penstock.protocol.messages.metadata import MetadataRequest, MetadataResponse

_VERSION = 9


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """The brokers of a cluster, in the order of their ids."""

    addresses: Mapping[int, Address]
    """On the listener that answered."""
    controller: int


def cluster_nodes(connection: AdminConnection, deadline: Deadline) -> ClusterNodes:
    """As the first bootstrap address tells it that answers in its share of the time."""
    left = len(connection.settings.bootstrap.split(","))
    silent: UnreachableError | None = None
    for address in connection.listeners():
        try:
            return _asked(connection, address, Deadline(deadline.left_s / left))
        except UnreachableError as error:
            silent = error
        left -= 1
    assert silent is not None, "one listens, or `listeners` raises"
    raise silent


def _asked(connection: AdminConnection, address: Address, deadline: Deadline) -> ClusterNodes:
    request = MetadataRequest(topics=(), allow_auto_topic_creation=False)
    told = call(address, apis.METADATA, _VERSION, request, MetadataResponse, connection.settings, deadline)
    found = sorted(told.brokers, key=lambda broker: broker.node_id)
    return ClusterNodes({each.node_id: Address(each.host, each.port) for each in found}, told.controller_id)
