"""What must hold in every run, and what the guarantee gives up.

- A record that was acknowledged (acks=all) is in the log of every later leader, at its offset, once.
- What any leader has shown below its high watermark is the same for all of them and for ever.
- A leader epoch has one leader that appends.
- A follower does not cut off what leaders before the one it follows have shown.
- An end that a client is told is not below what was acknowledged before it asked, whoever is asked.
- A leader that was buried because its lease was over does not append any more when another has begun (and was not
  following when that began).

Records past their retention are not missed. If a broker returns from a power loss as the last member of an in-sync set,
what it lost is given up: everything from its end on that leaders of earlier epochs have acknowledged or still will.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.metadata import MetadataImage
from penstock.ids import BrokerId

from .disk import Record, ReplicaLog
from .world import World

if TYPE_CHECKING:
    from .broker import Broker
    from .tree import Commit


class Violation(AssertionError):
    """A run broke a promise."""

    def __init__(self, partition: int | None, text: str) -> None:
        super().__init__(text if partition is None else f"partition {partition}: {text}")
        self.partition = partition


class History:
    """What is known of one partition by somebody who sees everything."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, int]] = []
        """The record at each offset that has been below a high watermark, and the epoch it was appended in."""
        self.watermarks: dict[int, int] = {}
        """The highest of each epoch."""
        self.acknowledged: dict[int, int] = {}
        """Where each acknowledged record is."""
        self.leaders: dict[int, tuple[BrokerId, int]] = {}
        """Which process appended in which epoch."""
        self.begun: dict[int, tuple[BrokerId, float]] = {}
        """Who began to lead in which epoch, and when."""
        self.buried: set[int] = set()
        """Epochs that ended because the lease of their leader was over."""
        self.given_up: list[tuple[int, int]] = []
        """(epoch, offset): from this offset on, what leaders of epochs below had."""
        self.trimmed_to = 0
        self.end = 0
        """Behind the last acknowledged record."""

    def limit(self, epoch: int) -> int:
        """The offset from which on what a leader of this epoch says does not count any more."""
        return min((offset for later, offset in self.given_up if epoch < later), default=1 << 62)

    def shown_before(self, epoch: int) -> int:
        """How much leaders of earlier epochs have shown."""
        shown = max((end for earlier, end in self.watermarks.items() if earlier < epoch), default=0)
        return min(shown, len(self.shown), self.limit(epoch))


class Judge:
    """Sees everything that happens, and raises a `Violation`."""

    def __init__(self, world: World, partitions: int, followed_within_ms: float) -> None:
        self.histories = [History() for _ in range(partitions)]
        self._world = world
        self._followed_within_ms = followed_within_ms
        self.is_lease_certain = True
        """False once the tree has ended a lease before its time."""

    def committed(self, broker: Broker, commit: Commit, before: MetadataImage) -> None:
        """The tree has taken a decision."""
        for topic in before.topics.values():
            for old, new in zip(topic.partitions, commit.image.topics[topic.name].partitions, strict=True):
                history = self.histories[old.index]
                if old.leader in commit.dead:
                    history.buried.add(old.leader_epoch)
                if commit.kind.value == "join" and not broker.has_all and old.in_sync == (broker.id,):
                    self._give_up(old.index, new.leader_epoch, broker.logs[old.index].end)
                if old.leader != new.leader:
                    self._world.counts["elections"] += 1
        if self._world.trace is not None:
            self._world.tell(
                f"tree: {broker.name} commits {commit.kind.value} {list(commit.dead) or ''}: {_sum(commit.image)}"
            )

    def begins(self, index: int, epoch: int, broker: Broker, log: ReplicaLog) -> None:
        """A broker leads from now on: it must have all that leaders of earlier epochs have shown."""
        history = self.histories[index]
        shown = history.shown_before(epoch)
        if log.end < shown:
            self._fail(index, f"{broker.name} leads in epoch {epoch} and ends at {log.end}; {shown} records were shown")
        if log.start > min(history.trimmed_to, history.limit(epoch)):
            self._fail(
                index,
                f"{broker.name} leads in epoch {epoch} and begins at {log.start}; {history.trimmed_to} is trimmed",
            )
        self._compare(index, epoch, broker, log, log.start, shown)
        history.begun[epoch] = (broker.id, self._world.now_ms)

    def appended(self, index: int, epoch: int, broker: Broker) -> None:
        history = self.histories[index]
        process = (broker.id, broker.incarnation)
        if history.leaders.setdefault(epoch, process) != process:
            self._fail(index, f"{broker.name} appends in epoch {epoch}, in which another process did")
        if epoch in history.buried and self.is_lease_certain:
            latest_ms = self._world.now_ms - self._followed_within_ms
            for later, (leader, begun_ms) in history.begun.items():
                if later > epoch and leader != broker.id and begun_ms < latest_ms:
                    self._fail(
                        index, f"{broker.name} appends in epoch {epoch}, long after b{leader} began epoch {later}"
                    )

    def rose(self, index: int, epoch: int, broker: Broker, log: ReplicaLog, before: int) -> None:
        """A leader has raised its high watermark."""
        history = self.histories[index]
        end = min(log.high_watermark, history.limit(epoch))
        history.watermarks[epoch] = end
        self._compare(index, epoch, broker, log, max(before, log.start), min(end, len(history.shown)))
        if end > len(history.shown):
            history.shown += [record[:2] for record in log.read(len(history.shown), end)]

    def acknowledged(self, index: int, epoch: int, offset: int, record: int) -> None:
        """A producer has heard that its record is safe."""
        history = self.histories[index]
        self._world.counts["acknowledged"] += 1
        if offset >= history.limit(epoch):
            self._world.counts["acknowledged, given up"] += 1
            return
        if offset >= len(history.shown) or history.shown[offset][0] != record:
            self._fail(
                index, f"#{record} was acknowledged at {offset}, where {history.shown[offset : offset + 1]} was shown"
            )
        if history.acknowledged.setdefault(record, offset) != offset:
            self._fail(index, f"#{record} was acknowledged at {history.acknowledged[record]} and at {offset}")
        history.end = max(history.end, offset + 1)

    def end_told(self, index: int, broker: BrokerId, end: int, acknowledged: int) -> None:
        """A client that asked when so much was acknowledged is told where the log ends."""
        history = self.histories[index]
        self._world.counts["ends told"] += 1
        expected = min([acknowledged, *(offset for _, offset in history.given_up)])
        if end < expected and self.is_lease_certain:
            self._fail(index, f"b{broker} says that the log ends at {end}; {expected} was acknowledged before")

    def consumed(self, index: int, offset: int, records: list[Record], epoch: int) -> None:
        shown, end = self.histories[index].shown, min(offset + len(records), self.histories[index].limit(epoch))
        for at in range(offset, end):
            if shown[at : at + 1] != [records[at - offset][:2]]:
                self._fail(
                    index, f"a consumer read #{records[at - offset].id} at {at}, where {shown[at : at + 1]} was shown"
                )

    def out_of_range(self, index: int, offset: int, epoch: int) -> None:
        """A consumer at this offset was told that it does not exist."""
        history = self.histories[index]
        if offset >= history.trimmed_to and not any(offset > given_up for _, given_up in history.given_up):
            self._fail(index, f"a consumer at {offset} was told in epoch {epoch} that this is out of range")

    def cut(self, index: int, epoch: int, broker: Broker, end: int, dropped: list[Record]) -> None:
        """A follower of this epoch has dropped records."""
        history = self.histories[index]
        for at in range(max(end, history.trimmed_to), min(end + len(dropped), history.shown_before(epoch))):
            if history.shown[at] == dropped[at - end][:2]:
                self._fail(
                    index, f"{broker.name} cuts off {dropped[at - end][:2]} at {at} in epoch {epoch}; it was shown"
                )

    def trimmed(self, index: int, start: int) -> None:
        self.histories[index].trimmed_to = max(self.histories[index].trimmed_to, start)

    def finish(self, index: int, logs: list[ReplicaLog], leader: ReplicaLog) -> None:
        """Everything is whole again: all replicas have all that was acknowledged, once, and agree."""
        history = self.histories[index]
        for log in logs:
            start, end = max(log.start, leader.start), min(log.high_watermark, leader.high_watermark)
            if log.read(start, end) != leader.read(start, end):
                self._fail(index, "replicas differ below the high watermark")
        places: dict[int, int] = {}
        for offset, record in enumerate(leader.records, leader.start):
            if places.setdefault(record.id, offset) != offset:
                self._fail(index, f"#{record.id} is at {places[record.id]} and at {offset}")
        for record_id, offset in history.acknowledged.items():
            if offset >= leader.start and places.get(record_id) != offset:
                self._fail(index, f"#{record_id} was acknowledged at {offset} and is at {places.get(record_id)}")

    def _give_up(self, index: int, epoch: int, offset: int) -> None:
        history = self.histories[index]
        history.given_up.append((epoch, offset))
        gone = [record for record, at in history.acknowledged.items() if at >= offset]
        for record in gone:
            del history.acknowledged[record]
        del history.shown[offset:]
        history.end = min(history.end, offset)
        history.trimmed_to = min(history.trimmed_to, offset)
        for earlier, end in history.watermarks.items():
            history.watermarks[earlier] = min(end, offset)
        self._world.counts["acknowledged, given up"] += len(gone)
        self._world.counts["last in-sync member loses power"] += 1
        if self._world.trace is not None:
            self._world.tell(f"judge: p{index} from {offset} on given up, epochs below {epoch}")

    def _compare(self, index: int, epoch: int, broker: Broker, log: ReplicaLog, start: int, end: int) -> None:
        shown = self.histories[index].shown
        for at, record in enumerate(log.read(start, max(end, start)), start):
            if record[:2] != shown[at]:
                self._fail(
                    index,
                    f"{broker.name} leads in epoch {epoch} with {record[:2]} at {at}, where {shown[at]} was shown",
                )

    def _fail(self, index: int, text: str) -> None:
        raise Violation(index, text)


def _sum(image: MetadataImage) -> str:
    parts = [
        f"p{part.index} e{part.leader_epoch} leader {part.leader} in sync {list(part.in_sync)}"
        for topic in image.topics.values()
        for part in topic.partitions
    ]
    return "; ".join(parts)
