"""Leader epochs as clients see them once leadership has changed.

A broker alone keeps its epoch, so the change is made in the coordination tree while the broker is down, as an election
would make it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.cluster import nodes
from penstock.cluster.coordination import Put
from penstock.cluster.embedded import EmbeddedCoordination
from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from support.broker_process import BrokerProcess
from support.wire import Wire, batch_of

BrokerFactory = Callable[..., BrokerProcess]


async def raise_epoch(tree: Path, topic: str, epoch: int) -> None:
    coordination = await EmbeddedCoordination.open(tree)
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


def test_a_stale_leader_epoch_is_fenced_and_the_end_of_each_epoch_is_known(
    new_broker: BrokerFactory, topic: str
) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"a", b"b", b"c"))
    assert broker.stop() == 0
    asyncio.run(raise_epoch(broker.data / "coordination.db", topic, 4))
    broker.start()
    with Wire(broker.address) as wire:
        assert wire.metadata(topic)["partitions"][0]["leader_epoch"] == 4
        wire.produce(topic, batch_of(b"d"))

        assert wire.fetch(topic, 0, leader_epoch=3)["error_code"] == Code.FENCED_LEADER_EPOCH
        assert wire.fetch(topic, 0, leader_epoch=4)["error_code"] == 0
        assert wire.fetch(topic, 0, leader_epoch=5)["error_code"] == Code.UNKNOWN_LEADER_EPOCH
        asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=0, timestamp=EARLIEST_TIMESTAMP)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),))
        answer = wire.ask(apis.LIST_OFFSETS, 7, request)
        assert answer["topics"][0]["partitions"][0]["error_code"] == Code.FENCED_LEADER_EPOCH
        assert end_of_epoch(wire, topic, 0, current=2)["error_code"] == Code.FENCED_LEADER_EPOCH

        ends = {epoch: end_of_epoch(wire, topic, epoch) for epoch in (0, 2, 4, 5)}
        found = {epoch: (end["leader_epoch"], end["end_offset"]) for epoch, end in ends.items()}
        assert found == {0: (0, 3), 2: (0, 3), 4: (4, 4), 5: (-1, -1)}

        # The records carry the epoch that they were written in.
        stored = wire.fetch(topic, 0)["records"]
        second = 12 + int.from_bytes(stored[8:12], "big")
        epochs = [int.from_bytes(stored[at + 12 : at + 16], "big") for at in (0, second)]
        assert epochs == [0, 4]
