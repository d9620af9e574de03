"""Producers and consumers, as Kafka clients are: they know leaders from metadata, wait, and ask again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.metadata import NO_LEADER, PartitionImage
from penstock.errors import Code
from penstock.ids import BrokerId

from .disk import Record
from .judge import Judge
from .world import Node, World

if TYPE_CHECKING:
    from .broker import Broker
    from .network import Network

_TIMEOUT_MS = 350.0


class Client:
    """Knows who leads a partition; an older leader epoch than the known one is not believed."""

    def __init__(self, node: Node, world: World, network: Network, brokers: dict[BrokerId, Broker], index: int) -> None:
        self._node, self._world, self._network, self._brokers = node, world, network, brokers
        self._index = index
        self._leader = NO_LEADER
        self._epoch = -1

    def _look_up(self) -> None:
        broker = self._world.random.choice(list(self._brokers.values()))
        self._network.send(self._node, broker, broker.describe, self._node, self._described)

    def _described(self, partitions: tuple[PartitionImage, ...]) -> None:
        partition = partitions[self._index]
        if partition.leader_epoch >= self._epoch:
            self._leader, self._epoch = partition.leader, partition.leader_epoch


class Producer(Client):
    """Idempotent, acks=all, one record at a time; a record is sent again until it is acknowledged."""

    def __init__(
        self,
        node: Node,
        world: World,
        network: Network,
        brokers: dict[BrokerId, Broker],
        index: int,
        judge: Judge,
        pace_ms: float,
    ) -> None:
        super().__init__(node, world, network, brokers, index)
        self._judge = judge
        self._pace_ms = pace_ms
        self._id = self._next_id()
        self._sequence = -1
        self._record: int | None = None
        self._sent_ms = 0.0
        self._is_refused = False
        self.made_ms = 0.0
        self.acknowledged_since_ms = -1.0
        """When the last acknowledged record was made."""
        world.after(world.random.uniform(0.0, pace_ms), node, self._tick)

    def _next_id(self) -> int:
        self._world.counts["producer ids"] += 1
        return self._world.counts["producer ids"]

    def _tick(self) -> None:
        self._world.after(self._pace_ms * self._world.random.uniform(0.5, 1.5), self._node, self._tick)
        if self._world.random.random() < 0.2:
            self._look_up()  # as clients do from time to time
        if self._record is None:
            self._make()
        elif self._is_refused or self._world.now_ms - self._sent_ms > _TIMEOUT_MS:
            self._look_up()
            self._send()

    def _make(self) -> None:
        self._world.counts["records"] += 1
        self._record = self._world.counts["records"]
        self._sequence += 1
        self.made_ms = self._world.now_ms
        self._send()

    def _send(self) -> None:
        self._is_refused = False
        self._sent_ms = self._world.now_ms
        if self._leader == NO_LEADER:
            self._is_refused = True
            self._look_up()
            return
        broker = self._brokers[self._leader]
        record = (self._record, self._id, self._sequence)
        number = self._record

        def answered(code: Code, offset: int, epoch: int) -> None:
            self._answered(number, code, offset, epoch)

        self._network.send(self._node, broker, broker.produce, self._node, self._index, record, answered)

    def _answered(self, number: int | None, code: Code, offset: int, epoch: int) -> None:
        if number is None or number != self._record:
            return
        if code is Code.NONE:
            self._record = None
            self.acknowledged_since_ms = self.made_ms
            self._judge.acknowledged(self._index, epoch, offset, number)
        elif code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # What came before is gone with a power loss or past its retention: the producer begins anew, and this
            # record counts as failed.
            self._world.counts["producers begun anew"] += 1
            self._id, self._sequence, self._record = self._next_id(), -1, None
        else:
            self._is_refused = True


class EndAsker(Client):
    """Asks where the log ends, of any broker: as one of many clients, some of which have not heard of a new leader."""

    def __init__(
        self, node: Node, world: World, network: Network, brokers: dict[BrokerId, Broker], index: int, judge: Judge
    ) -> None:
        super().__init__(node, world, network, brokers, index)
        self._judge = judge
        world.after(world.random.uniform(0.0, 50.0), node, self._tick)

    def _tick(self) -> None:
        self._world.after(self._world.random.uniform(20.0, 60.0), self._node, self._tick)
        broker = self._world.random.choice(list(self._brokers.values()))
        acknowledged = self._judge.histories[self._index].end

        def answered(code: Code, end: int) -> None:
            if code is Code.NONE:
                self._judge.end_told(self._index, broker.id, end, acknowledged)

        self._network.send(self._node, broker, broker.tell_end, self._node, self._index, answered)


class Consumer(Client):
    """Reads a partition in order and says which leader epoch it knows (KIP-320)."""

    def __init__(
        self, node: Node, world: World, network: Network, brokers: dict[BrokerId, Broker], index: int, judge: Judge
    ) -> None:
        super().__init__(node, world, network, brokers, index)
        self._judge = judge
        self._offset = 0
        world.after(world.random.uniform(0.0, 200.0), node, self._tick)

    def _tick(self) -> None:
        self._world.after(self._world.random.uniform(100.0, 300.0), self._node, self._tick)
        if self._leader == NO_LEADER:
            self._look_up()
            return
        broker, epoch = self._brokers[self._leader], self._epoch

        def answered(code: Code, offset: int, records: list[Record], end: int) -> None:
            self._answered(epoch, code, offset, records, end)

        self._network.send(self._node, broker, broker.consume, self._node, self._index, epoch, self._offset, answered)
        if self._world.random.random() < 0.2:
            self._look_up()

    def _answered(self, epoch: int, code: Code, offset: int, records: list[Record], end: int) -> None:
        if offset != self._offset:
            return
        if code is Code.NONE:
            self._judge.consumed(self._index, offset, records, epoch)
            self._offset = offset + len(records)
            self._world.counts["consumed"] += len(records)
        elif code is Code.OFFSET_OUT_OF_RANGE:
            self._judge.out_of_range(self._index, offset, epoch)
            self._offset = end
        else:
            if code is Code.OFFSET_NOT_AVAILABLE:
                self._world.counts["answered OFFSET_NOT_AVAILABLE"] += 1
            self._look_up()
