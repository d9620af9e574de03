"""Leader epochs as clients see them once leadership has changed.

A broker alone, with log files, keeps its epoch, so the change is made in the coordination tree while the broker is
down, as an election would make it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.records.batch import read_header
from support.broker_process import BrokerProcess
from support.epochs import end_of_epoch, raise_epoch
from support.wire import Wire, batch_of

BrokerFactory = Callable[..., BrokerProcess]


def test_a_stale_leader_epoch_is_fenced_and_the_end_of_each_epoch_is_known(
    new_broker: BrokerFactory, topic: str
) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"a", b"b", b"c"))
    assert broker.stop() == 0
    asyncio.run(raise_epoch(broker, topic, 4))
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
        batches = [wire.fetch(topic, offset)["records"] for offset in (0, 3)]
        assert [read_header(batch).leader_epoch for batch in batches] == [0, 4]
