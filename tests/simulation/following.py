"""A simulated broker as a follower of a partition, in one epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.metadata import NO_LEADER, PartitionImage
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.replication.divergence import Append, BeginAt, CutBack, Divergence, Position

from .disk import Record, ReplicaLog

if TYPE_CHECKING:
    from .broker import Broker

_BACKOFF_MS = 40.0


class Following:
    """Fetches from the leader, one request at a time; a connection ends when an answer stays away."""

    def __init__(self, broker: Broker, partition: PartitionImage, log: ReplicaLog) -> None:
        self.index = partition.index
        self.epoch = partition.leader_epoch
        self._leader = None if partition.leader == NO_LEADER else broker.peer(partition.leader)
        self._broker, self._log = broker, log
        self._number: int | None = None
        """Of the request under way."""
        self._asked = Position(0, -1)
        self._sent_ms = 0.0
        self._is_over = False
        self._connection = broker.next_number()
        self._ask()

    def settled(self, partition: PartitionImage, alive: frozenset[BrokerId]) -> None:
        """In-sync sets are the leader's business."""

    def end(self) -> None:
        self._is_over = True

    def is_waiting_for(self, number: int) -> bool:
        return number == self._number

    def tick(self) -> None:
        if (
            self._number is not None
            and self._broker.clock_ms - self._sent_ms > self._broker.around.timing.request_timeout
        ):
            self._connection = self._broker.next_number()
            self._number = None
            self._ask()

    def take(
        self,
        number: int,
        code: Code,
        divergence: Divergence | None,
        leader_start: int,
        high_watermark: int,
        records: list[Record],
    ) -> None:
        if number != self._number or self._is_over:
            return
        self._number = None
        broker, log = self._broker, self._log
        match broker.around.machines.next_step(code, divergence, leader_start, self._asked, log.epochs):
            case Append() if records and broker.is_full:
                broker.world.after(_BACKOFF_MS, broker, self._ask)
                return
            case Append():
                for record in records:
                    log.append(record)
                log.trim(leader_start)
                log.high_watermark = max(log.high_watermark, min(high_watermark, log.end))
            case CutBack(end_offset):
                before = log.end
                dropped = log.cut(end_offset)
                broker.world.counts["records cut back"] += len(dropped)
                if broker.world.trace is not None:
                    self._tell(f"cuts back from {before} to {end_offset}, said {divergence}")
                broker.around.judge.cut(self.index, self.epoch, broker, before - len(dropped), dropped)
            case BeginAt(start_offset):
                broker.world.counts["logs begun anew"] += 1
                if broker.world.trace is not None:
                    self._tell(f"begins anew at {start_offset}")
                log.begin_at(start_offset)
            case _:
                broker.world.after(_BACKOFF_MS, broker, self._ask)
                return
        self._ask()

    def _ask(self) -> None:
        if self._leader is None or self._is_over or self._number is not None:
            return
        broker, log = self._broker, self._log
        self._number = broker.next_number()
        self._sent_ms = broker.clock_ms
        self._asked = broker.around.machines.position_of(log.epochs, log.end)
        leader = self._leader
        broker.around.network.send(
            broker, leader, leader.fetch, self.index, broker, self.epoch, self._asked, self._number, self._connection
        )

    def _tell(self, text: str) -> None:
        self._broker.world.tell(f"{self._broker.name} p{self.index} e{self.epoch}: {text}")
