"""Leader epochs from outside: raised in the coordination tree of a broker that is down, and asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

from penstock.clock import SystemClock
from penstock.cluster import nodes
from penstock.cluster.coordination.contract import Coordination, Put
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.coordination.sql import SqlCoordination
from penstock.config.database_address import DatabaseAddress
from penstock.protocol import apis
from penstock.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from support.broker_process import BrokerProcess
from support.wire import Wire

SQL_NAMESPACE = "penstock"
"""Of the tree of brokers whose only store is a database."""
_LEASE_MS = 6_000


async def raise_epoch(broker: BrokerProcess, topic: str, epoch: int) -> None:
    """The epoch in which the broker leads the topic's partitions when it is started again."""
    url = broker.env.get("PENSTOCK_SQL_URL")
    coordination: Coordination
    if url is None:
        coordination = await EmbeddedCoordination.open(broker.data / "coordination.db")
    else:
        address = DatabaseAddress.parse(url)
        coordination = await SqlCoordination.open(address, SQL_NAMESPACE, _LEASE_MS, SystemClock())
        # A broker on shared storage begins an epoch whenever it comes.
        epoch -= 1
    try:
        path = nodes.topic_path(topic)
        node = await coordination.get(path)
        assert node is not None
        image = nodes.decode_topic(topic, node.value)
        partitions = tuple(dataclasses.replace(each, leader_epoch=epoch) for each in image.partitions)
        value = nodes.encode_topic(dataclasses.replace(image, partitions=partitions))
        await coordination.commit(Put(path, value, node.version))
    finally:
        await coordination.close()


def end_of_epoch(wire: Wire, topic: str, epoch: int, current: int = -1) -> dict[str, Any]:
    partition = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic=topic, partitions=(partition,)),))
    result: dict[str, Any] = wire.ask(apis.OFFSET_FOR_LEADER_EPOCH, 4, request)["topics"][0]["partitions"][0]
    return result
