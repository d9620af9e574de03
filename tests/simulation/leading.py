"""A simulated broker as the leader of a partition, in one epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cluster.decisions.elections import with_in_sync
from penstock.cluster.metadata import PartitionImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.replication.divergence import Divergence, Position

from .disk import Record, ReplicaLog
from .tree import TOPIC, Commit, Kind, View
from .world import Node

if TYPE_CHECKING:
    from .broker import Broker


class Waiter(NamedTuple):
    """A producer that waits for the high watermark."""

    offset: int
    client: Node
    answer: Any


class EndAsked(NamedTuple):
    """A client that is told where the log ends when every in-sync follower has fetched again."""

    since_ms: float
    client: Node
    answer: Any


class Parked(NamedTuple):
    """A fetch that found nothing new."""

    follower: Broker
    number: int
    connection: int
    since_ms: float
    offset: int


class Leading:
    """The log is appended to by producers, and read by followers and consumers."""

    def __init__(
        self,
        broker: Broker,
        partition: PartitionImage,
        alive: frozenset[BrokerId],
        log: ReplicaLog,
        waiters: list[Waiter],
    ) -> None:
        self.index = partition.index
        self.epoch = partition.leader_epoch
        self.waiters = waiters
        self._broker, self._log = broker, log
        self._world, self._judge = broker.world, broker.around.judge
        self._judge.begins(self.index, self.epoch, broker, log)
        self._state = broker.around.machines.leadership(
            broker.id,
            self.epoch,
            partition.replicas,
            partition.in_sync,
            alive,
            start_offset=log.end,
            high_watermark=log.high_watermark,
            rules=broker.around.lag,
            now_ms=broker.clock_ms,
        )
        self._proposed: frozenset[BrokerId] | None = None
        self._parked: dict[BrokerId, Parked] = {}
        self._ends_asked: list[EndAsked] = []
        self._answered: dict[BrokerId, tuple[int, float]] = {}
        """When, and on which connection, each follower was last answered."""
        if self._world.trace is not None:
            self._tell(f"leads, in sync {sorted(partition.in_sync)}, end {log.end}, watermark {log.high_watermark}")
        self._raise()

    # Metadata

    def settled(self, partition: PartitionImage, alive: frozenset[BrokerId]) -> None:
        if self._world.trace is not None and set(partition.in_sync) != self._state.in_sync:
            self._tell(f"in sync are {sorted(partition.in_sync)}")
        self._state.settled(partition.in_sync, partition.replicas, alive, self._broker.clock_ms)
        self._raise()

    def end(self) -> None:
        if self._world.trace is not None:
            self._tell("leads no more")
        for waiter in self.waiters:
            self._answer(waiter.client, waiter.answer, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1, -1)
        self.waiters = []
        for asked in self._ends_asked:
            self._answer(asked.client, asked.answer, Code.NOT_LEADER_OR_FOLLOWER, -1)
        self._ends_asked = []

    def propose(self, view: View) -> bool:
        """Commits another in-sync set, if it should be another. What is proposed is decided again on every newer image,
        until that has it, or refuses it.
        """
        image = view.image
        topic = image.topics[TOPIC]
        partition = topic.partitions[self.index]
        if self._proposed is not None and self._with_proposed(partition, image.alive) == partition:
            self._proposed = None
            self._state.decided()
            self._raise()
        if self._proposed is None:
            can_write = not self._broker.is_full
            self._proposed = self._state.proposal(self._log.end, self._broker.clock_ms, can_write=can_write)
            if self._proposed is None:
                return False
            self._state.propose(self._proposed)
            if self._world.trace is not None:
                self._tell(f"proposes in sync {sorted(self._proposed)}")
        changed = self._with_proposed(partition, image.alive)
        if changed == partition:
            return False
        draft = MetadataDraft(image)
        draft.put_topic(
            replace(topic, partitions=tuple(changed if old is partition else old for old in topic.partitions))
        )
        self._broker.commit(Commit(kind=Kind.IN_SYNC, base=image.version, image=draft.finish()))
        return True

    def _with_proposed(self, partition: PartitionImage, alive: frozenset[BrokerId]) -> PartitionImage:
        return with_in_sync(partition, self._broker.id, self.epoch, self._proposed or frozenset(), alive)

    # Producers and consumers

    def produce(self, client: Node, record: tuple[int, int, int], answer: Any) -> None:
        """acks=all; a repeat of the last record of a producer waits like the record itself."""
        number, producer, sequence = record
        if not self._leads():
            self._answer(client, answer, Code.NOT_LEADER_OR_FOLLOWER, -1, -1)
            return
        if len(self._state.in_sync) < self._broker.around.min_in_sync:
            self._answer(client, answer, Code.NOT_ENOUGH_REPLICAS, -1, -1)
            return
        last, offset = self._log.producers.get(producer, (sequence - 1, -1))
        if sequence not in (last, last + 1):
            self._answer(client, answer, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1)
            return
        if sequence == last + 1 and self._broker.is_full:
            self._answer(client, answer, Code.KAFKA_STORAGE_ERROR, -1, -1)
            self._broker.act()
            return
        if sequence == last + 1:
            offset = self._log.append(Record(number, self.epoch, producer, sequence, self._broker.wall_ms))
            self._judge.appended(self.index, self.epoch, self._broker)
            if self._world.trace is not None:
                self._tell(f"appends #{number} at {offset}")
        else:
            self._world.counts["repeats"] += 1
        self.waiters.append(Waiter(offset, client, answer))
        self._raise()
        self._release()

    def consume(self, epoch: int, offset: int) -> tuple[Code, list[Record], int]:
        if epoch != self.epoch:
            return (Code.FENCED_LEADER_EPOCH if epoch < self.epoch else Code.UNKNOWN_LEADER_EPOCH), [], -1
        if not self._leads():
            return Code.NOT_LEADER_OR_FOLLOWER, [], -1
        state, log = self._state, self._log
        if offset > state.high_watermark:
            known = state.knows_watermark
            return (Code.OFFSET_OUT_OF_RANGE if known else Code.OFFSET_NOT_AVAILABLE), [], state.high_watermark
        if offset < log.start:
            return Code.OFFSET_OUT_OF_RANGE, [], log.start
        return Code.NONE, log.read(offset, min(state.high_watermark, offset + 40)), state.high_watermark

    def tell_end(self, client: Node, answer: Any) -> None:
        """At once while the lease holds; else when the followers have shown that nobody else leads."""
        broker = self._broker
        if not self._leads():
            self._answer(client, answer, Code.NOT_LEADER_OR_FOLLOWER, -1)
        elif self._state.is_certain(broker.clock_ms, broker.lease_until_ms):
            self._answer_end(client, answer)
        else:
            self._ends_asked.append(EndAsked(broker.clock_ms, client, answer))
            self._release(broker.clock_ms)

    def _answer_end(self, client: Node, answer: Any) -> None:
        if self._state.knows_watermark:
            self._answer(client, answer, Code.NONE, self._state.high_watermark)
        else:
            self._answer(client, answer, Code.OFFSET_NOT_AVAILABLE, -1)

    def _confirm_ends(self) -> None:
        waiting, self._ends_asked = self._ends_asked, []
        for asked in waiting:
            if self._state.is_followed(asked.since_ms):
                self._world.counts["ends confirmed by followers"] += 1
                self._answer_end(asked.client, asked.answer)
            elif self._broker.clock_ms - asked.since_ms > self._broker.around.timing.followed_within:
                self._answer(asked.client, asked.answer, Code.NOT_LEADER_OR_FOLLOWER, -1)
            else:
                self._ends_asked.append(asked)

    # Followers

    def fetch(self, follower: Broker, asked: Position, number: int, connection: int) -> None:
        log, state, now_ms = self._log, self._state, self._broker.clock_ms
        if not state.knows(follower.id):
            self._answer_fetch(follower, number, connection, Code.NOT_LEADER_OR_FOLLOWER, None, asked.offset)
            return
        if self._broker.around.machines.is_out_of_range(asked, log.start, state.end_of(follower.id)):
            self._answer_fetch(follower, number, connection, Code.OFFSET_OUT_OF_RANGE, None, asked.offset)
            return
        divergence = self._broker.around.machines.diverges(asked, log.epochs, log.end)
        if divergence is not None:
            self._answer_fetch(follower, number, connection, Code.NONE, divergence, asked.offset)
            return
        before, answered_ms = self._answered.get(follower.id, (-1, 0.0))
        followed_ms = answered_ms if before == connection else float("-inf")
        state.fetched(follower.id, asked.offset, log.end, now_ms, followed_ms)
        self._raise()
        self._confirm_ends()
        if asked.offset < log.end or self._ends_asked:
            self._answer_fetch(follower, number, connection, Code.NONE, None, asked.offset)
        else:
            self._parked[follower.id] = Parked(follower, number, connection, now_ms, asked.offset)
        if follower.id not in state.in_sync:
            self._broker.act()

    def tick(self) -> None:
        self._raise()
        self._confirm_ends()
        self._release(self._broker.clock_ms - self._broker.around.timing.fetch_wait)
        if self._world.random.random() < 0.1 and self._leads():
            self._trim()

    def _release(self, since_ms: float = float("-inf")) -> None:
        """Answers the parked fetches that have waited long enough, or have something to get."""
        for parked in list(self._parked.values()):
            if parked.offset < self._log.end or parked.since_ms <= since_ms:
                del self._parked[parked.follower.id]
                self._answer_fetch(parked.follower, parked.number, parked.connection, Code.NONE, None, parked.offset)

    def _answer_fetch(
        self, follower: Broker, number: int, connection: int, code: Code, divergence: Divergence | None, offset: int
    ) -> None:
        self._answered[follower.id] = (connection, self._broker.clock_ms)
        log = self._log
        records: list[Record] = []
        if code is Code.NONE and divergence is None and offset < log.end:
            records = log.read(offset, min(log.end, offset + self._world.random.randint(1, 60)))
        self._broker.around.network.send(
            self._broker,
            follower,
            follower.fetched,
            self.index,
            number,
            code,
            divergence,
            log.start,
            self._state.high_watermark,
            records,
        )

    # Within

    def _leads(self) -> bool:
        """The rule of the lease, looked at with every append."""
        broker = self._broker
        return self._state.leads(broker.clock_ms, broker.lease_until_ms, broker.around.timing.followed_within)

    def _raise(self) -> None:
        state, log = self._state, self._log
        before = log.high_watermark
        if state.raise_watermark(log.end, self._broker.clock_ms):
            log.high_watermark = state.high_watermark
            self._judge.rose(self.index, self.epoch, self._broker, log, before)
        if self.waiters:
            waiting, self.waiters = self.waiters, []
            for waiter in waiting:
                if waiter.offset < state.high_watermark:
                    self._answer(waiter.client, waiter.answer, Code.NONE, waiter.offset, self.epoch)
                else:
                    self.waiters.append(waiter)

    def _trim(self) -> None:
        """Retention, by the wall clock: nothing above the high watermark goes."""
        log, oldest_ms = self._log, self._broker.wall_ms - self._broker.around.timing.retention
        start = log.start
        while start < log.high_watermark and log.records[start - log.start].written_ms < oldest_ms:
            start += 1
        if start > log.start:
            self._world.counts["records past retention"] += start - log.start
            log.trim(start)
            self._judge.trimmed(self.index, start)

    def _answer(self, client: Node, answer: Any, *arguments: object) -> None:
        self._broker.around.network.send(self._broker, client, answer, *arguments)

    def _tell(self, text: str) -> None:
        self._world.tell(f"{self._broker.name} p{self.index} e{self.epoch}: {text}")
