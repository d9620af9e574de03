"""A simulated broker: its session with the tree, what it makes of the metadata, and what it commits.

What it does with a partition is in `leading` and `following`; what it does for others as controller, in `controller`.
One commit at a time is under way. Whether one whose answer was lost has taken place is known as soon as a newer image
arrives: a commit on an older one cannot take place any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from penstock.cluster.metadata import PartitionImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.replication.divergence import Position
from penstock.replication.leadership import LagRules

from . import controller
from .disk import Record, ReplicaLog
from .following import Following
from .judge import Judge
from .leading import Leading
from .machines import Machines, Timing
from .network import Network
from .tree import TOPIC, Commit, Kind, Tree, View
from .world import Node, World

NEVER = float("-inf")

Answer = Callable[..., None]
"""What a client does with an answer."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every broker is wired with."""

    world: World
    network: Network
    tree: Tree
    judge: Judge
    machines: Machines
    timing: Timing
    lag: LagRules
    min_in_sync: int
    brokers: dict[BrokerId, Broker]


class Broker(Node):
    """A broker process and its disk."""

    def __init__(self, broker_id: BrokerId, partitions: int, surroundings: Surroundings) -> None:
        super().__init__(f"b{broker_id}")
        self.id = broker_id
        self.around = surroundings
        self.world = surroundings.world
        self.logs = [ReplicaLog() for _ in range(partitions)]
        self.has_all = True
        """What its disk remembers: False from a power loss until a return without everything is committed."""
        self.wall_offset_ms = 0.0
        self.slow_ms = 0.0
        """How long it takes over each answer to its fetches."""
        self.is_full = False
        """There is no room on its disk for another record."""
        self.dies_deciding = False
        """It crashes while its next decision as controller is under way."""
        self._numbers = 0
        self._begin()

    def _begin(self) -> None:
        self._origin_ms = self.world.random.uniform(0.0, 1e6)
        self.roles: dict[int, Leading | Following] = {}
        self.view: View | None = None
        self.session = self.around.tree.new_session()
        self._session_until_ms = NEVER
        self.is_joined = False
        self.is_stopping = False
        self._under_way: Commit | None = None
        self._sent_ms = NEVER

    @property
    def clock_ms(self) -> float:
        """Monotonic; means nothing to another process."""
        return self.world.now_ms + self._origin_ms

    @property
    def wall_ms(self) -> float:
        return self.world.now_ms + self.wall_offset_ms

    @property
    def lease_until_ms(self) -> float:
        """A session without the lease in it, because its return is not committed, is no lease."""
        holds = self.view is not None and self.view.leases.get(self.id) == self.session and not self.is_stopping
        return self._session_until_ms if holds else NEVER

    @property
    def may_begin(self) -> bool:
        """A broker leads and follows nothing before its return is committed."""
        return self.is_joined

    # The process

    def start(self) -> None:
        if self.is_up and self.view is not None:
            return
        self.is_up = True
        self._begin()
        if self.world.trace is not None:
            self.world.tell(f"{self.name}: starts, {'with all' if self.has_all else 'without all'} it had")
        self._tick()

    def kill(self, back_after_ms: float) -> None:
        """The kernel has what was written."""
        if self.world.trace is not None:
            self.world.tell(f"{self.name}: is gone")
        self.crash()
        for log in self.logs:
            log.restart()
        self.world.after(back_after_ms, None, self.start)

    def lose_power(self) -> None:
        """The end of every log is gone; may happen to a broker that is down, too."""
        if self.is_up:
            self.kill(self.world.random.uniform(20.0, 3.0 * self.around.timing.lease))
        self.has_all = False
        for log in self.logs:
            self.world.counts["unsynced records gone"] += log.lose_power(self.world.random.random())
        if self.world.trace is not None:
            self.world.tell(f"{self.name}: has lost power, ends {[log.end for log in self.logs]}")

    def stop(self) -> None:
        """In an orderly way: others lead first."""
        self.is_stopping = True
        self.act()

    # The session

    def ponged(self, session: int, sent_ms: float, is_held: bool, view: View) -> None:
        if session == self.session:
            if is_held:
                self._session_until_ms = max(self._session_until_ms, sent_ms + self.around.timing.lease)
            else:
                self.session = self.around.tree.new_session()
                self._session_until_ms = NEVER
                self.is_joined = False
                self._ping()
        self.take(view)

    def take(self, view: View) -> None:
        """The tree holds something else."""
        known = self.view
        if known is None or view.serial > known.serial:
            self.view = view
            if known is None or view.image.version > known.image.version:
                if self._under_way is not None and view.image.version > self._under_way.base:
                    self._under_way = None
                self._apply(view)
        self.act()

    def commit(self, commit: Commit) -> None:
        self._under_way, self._sent_ms = commit, self.world.now_ms
        tree = self.around.tree
        self.around.network.send(self, tree, tree.commit, self, self.session, commit)

    def _tick(self) -> None:
        self.world.after(self.around.timing.beat * (0.9 + self.world.random.random() * 0.2), self, self._tick)
        self._ping()
        for role in list(self.roles.values()):
            role.tick()
        if self.world.random.random() < 0.2:
            for log in self.logs:
                log.sync()
                log.keep_watermark()
        self.act()

    def _ping(self) -> None:
        self.around.network.send(self, self.around.tree, self.around.tree.pinged, self, self.session, self.clock_ms)

    # Metadata

    def _apply(self, view: View) -> None:
        me = view.image.brokers[self.id]
        self.is_joined = me.is_alive and view.leases.get(self.id) == self.session
        if self.is_joined:
            self.has_all = True
        for partition in view.image.topics[TOPIC].partitions:
            if self.id in partition.replicas:
                self._assume(partition, view.image.alive)

    def _assume(self, partition: PartitionImage, alive: frozenset[BrokerId]) -> None:
        """Leads, follows, or stops doing so."""
        role = self.roles.get(partition.index)
        if role is not None and role.epoch >= partition.leader_epoch:
            role.settled(partition, alive)
            return
        leads = partition.leader == self.id
        if role is not None and not (leads and isinstance(role, Leading) and self.may_begin):
            role.end()
            del self.roles[partition.index]
        if not self.may_begin:
            return
        if leads:
            waiters = role.waiters if isinstance(role, Leading) else []
            self.roles[partition.index] = Leading(self, partition, alive, self.logs[partition.index], waiters)
        else:
            self.roles[partition.index] = Following(self, partition, self.logs[partition.index])

    def act(self) -> None:
        """Commits what is to be committed, if nothing is under way."""
        if self.view is None:
            return
        if self._under_way is not None:
            if self.world.now_ms - self._sent_ms < self.around.timing.request_timeout:
                return
            # It may still take place: what was proposed stays proposed, and is committed again.
            self._under_way = None
        if self.is_stopping:
            self._resign(self.view)
        elif not self.is_joined:
            self._join(self.view)
        elif self.view.controller is None:
            tree = self.around.tree
            self.around.network.send(self, tree, tree.claim, self, self.session)
        elif self.view.controller == self.session and controller.look_after(self, self.view):
            if self.dies_deciding:
                self.dies_deciding = False
                self.world.counts["controller dies deciding"] += 1
                self.world.after(self.world.random.uniform(0.0, 8.0), self, self.kill, 1500.0)
        else:
            for role in self.roles.values():
                if isinstance(role, Leading) and role.propose(self.view):
                    break

    def _join(self, view: View) -> None:
        draft = MetadataDraft(view.image)
        me = view.image.brokers[self.id]
        draft.put_broker(replace(me, is_alive=True, epoch=me.epoch + 1))
        self.around.machines.welcome(draft, self.id, has_all=self.has_all, is_unclean=never)
        self.commit(Commit(kind=Kind.JOIN, base=view.image.version, image=draft.finish()))

    def _resign(self, view: View) -> None:
        if view.image.brokers[self.id].is_alive:
            draft = MetadataDraft(view.image)
            self.around.machines.step_down(draft, self.id)
            kind = Kind.STEP_DOWN
            if not draft.is_touched:
                self.around.machines.bury(draft, self.id, never)
                kind = Kind.RESIGN
            self.commit(Commit(kind=kind, base=view.image.version, image=draft.finish()))
            return
        for log in self.logs:
            log.sync()
            log.keep_watermark()
        self.around.network.send(self, self.around.tree, self.around.tree.close, self.session)
        self.kill(self.world.random.uniform(20.0, 1500.0))

    # What others ask for

    def produce(self, client: Node, index: int, record: tuple[int, int, int], answer: Answer) -> None:
        role = self.roles.get(index)
        if isinstance(role, Leading):
            role.produce(client, record, answer)
        else:
            self.around.network.send(self, client, answer, Code.NOT_LEADER_OR_FOLLOWER, -1, -1)

    def consume(self, client: Node, index: int, epoch: int, offset: int, answer: Answer) -> None:
        role = self.roles.get(index)
        refused: tuple[Code, list[Record], int] = (Code.NOT_LEADER_OR_FOLLOWER, [], -1)
        code, found, end = role.consume(epoch, offset) if isinstance(role, Leading) else refused
        self.around.network.send(self, client, answer, code, offset, found, end)

    def tell_end(self, client: Node, index: int, answer: Answer) -> None:
        role = self.roles.get(index)
        if isinstance(role, Leading):
            role.tell_end(client, answer)
        else:
            self.around.network.send(self, client, answer, Code.NOT_LEADER_OR_FOLLOWER, -1)

    def describe(self, client: Node, answer: Answer) -> None:
        if self.view is not None:
            self.around.network.send(self, client, answer, self.view.image.topics[TOPIC].partitions)

    def fetch(self, index: int, follower: Broker, epoch: int, asked: Position, number: int, connection: int) -> None:
        role = self.roles.get(index)
        if not isinstance(role, Leading):
            code = Code.NOT_LEADER_OR_FOLLOWER
        elif epoch == role.epoch:
            role.fetch(follower, asked, number, connection)
            return
        else:
            code = Code.FENCED_LEADER_EPOCH if epoch < role.epoch else Code.UNKNOWN_LEADER_EPOCH
        self.around.network.send(self, follower, follower.fetched, index, number, code, None, 0, 0, [])

    def fetched(self, index: int, number: int, *answer: Any) -> None:
        role = self.roles.get(index)
        if isinstance(role, Following) and role.is_waiting_for(number):
            if self.slow_ms:
                self.world.after(self.slow_ms, self, role.take, number, *answer)
            else:
                role.take(number, *answer)

    def peer(self, broker: BrokerId) -> Broker:
        return self.around.brokers[broker]

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers


def never(topic: object) -> bool:
    """No topic here would rather lose records."""
    return False
