"""What is done to a cluster, and undone.

A fault is a `with`: it hurts on entering and heals on leaving, and lasts for a time that is drawn between two bounds.
Faults are dealt like cards, in an order that the seed chooses: every one comes before one comes again. Up to a chosen
number of them overlap: each begins at its own moment within the first and ends at its own moment.
"""

from __future__ import annotations

import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from support.cluster import Cluster
from support.waiting import until
from support.zookeeper import ZooKeeperProcess

from .disks import Disks

KILL, STOP, NETWORK, TREE, FULL, SLOW, RESTART = (
    "kill -9",
    "SIGSTOP",
    "network",
    "ZooKeeper",
    "full disk",
    "slow disk",
    "restart",
)
_CHANCE_OF_ONE_MORE = 0.6
"""How likely it is that another fault joins those of a plan, as long as more may overlap."""
_PATIENCE_S = 120.0
_ZOOKEEPER_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    name: str
    hurt: Callable[[], AbstractContextManager[None]]
    least: float = 0.0
    """How long it lasts at least, in leases."""
    most: float = 0.0
    victims: int = 1
    """How many brokers it needs for itself."""
    needs: str = ""
    """What else it needs for itself: the links between processes, or the ZooKeeper processes."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


LINKS, SERVERS, ALL = "links", "ZooKeeper processes", "everything"


@dataclass(frozen=True, slots=True)
class Timing:
    """When a fault begins and ends, in seconds after its plan has begun."""

    fault: Fault
    begins_s: float
    ends_s: float


class Plan:
    """What comes next: faults that overlap."""

    def __init__(self, timings: Sequence[Timing], settle: Callable[[], None]) -> None:
        self._timings = timings
        self._settle = settle

    @property
    def faults(self) -> list[Fault]:
        return [timing.fault for timing in self._timings]

    def strike(self) -> None:
        """From the first hurt until everything is healed and all brokers are ready."""
        begun = time.monotonic()
        steps = sorted(
            [(timing.begins_s, 0, number) for number, timing in enumerate(self._timings)]
            + [(timing.ends_s, 1, number) for number, timing in enumerate(self._timings)]
        )
        with ExitStack() as unhealed:
            hurt: dict[int, ExitStack] = {}
            for at_s, is_end, number in steps:
                time.sleep(max(0.0, begun + at_s - time.monotonic()))
                if is_end:
                    hurt.pop(number).close()
                else:
                    hurt[number] = unhealed.enter_context(ExitStack())
                    hurt[number].enter_context(self._timings[number].fault.hurt())
        self._settle()


class BrokerSaboteur(ABC):
    """Hurts brokers and heals them; no broker is the victim of two faults at a time."""

    def __init__(
        self,
        cluster: Cluster,
        lease_s: float,
        chance: random.Random,
        only: Sequence[str] = (),
        overlap: int = 1,
        left_out: Collection[str] = (),
    ) -> None:
        """`only` are the names and kinds of the faults that are wanted; all, if there are none. At most `overlap`
        faults happen at the same time. Kinds that are `left_out` cannot be had here.
        """
        self._cluster = cluster
        self._lease_s = lease_s
        self._chance = chance
        self._overlap = overlap
        self._victims: set[int] = set()
        self._launched: list[int] = []
        wanted = [fault for fault in self._all() if not only or {fault.kind, fault.name} & set(only)]
        self._faults = [fault for fault in wanted if fault.kind not in left_out]
        assert self._faults, f"there are no such faults; there are {', '.join(map(str, self._all()))}"
        self._deck: list[Fault] = []

    @abstractmethod
    def _all(self) -> list[Fault]:
        """Every fault that there is."""

    def next(self) -> Plan:
        """The next fault of the deck, and those behind it that go with it."""
        faults = [self._deal()]
        while len(faults) < self._overlap and self._chance.random() < _CHANCE_OF_ONE_MORE:
            if not self._deck or not self._fits(self._deck[-1], faults):
                break
            faults.append(self._deal())
        first_s = self._duration_s(faults[0])
        timings = [Timing(faults[0], 0.0, first_s)]
        for fault in faults[1:]:
            begins_s = self._chance.uniform(0, max(first_s, self._lease_s / 2))
            timings.append(Timing(fault, begins_s, begins_s + self._duration_s(fault)))
        return Plan(timings, self._settle)

    def _deal(self) -> Fault:
        if not self._deck:
            self._deck = self._chance.sample(self._faults, len(self._faults))
        return self._deck.pop()

    def _fits(self, fault: Fault, others: Sequence[Fault]) -> bool:
        """Whether there are brokers enough for all of them, and none needs for itself what another needs."""
        needs = [each.needs for each in (fault, *others) if each.needs]
        enough = sum(each.victims for each in (fault, *others)) <= len(self._cluster.numbers)
        return enough and len(needs) == len(set(needs)) and ALL not in needs

    def _duration_s(self, fault: Fault) -> float:
        return self._chance.uniform(fault.least, fault.most) * self._lease_s

    def _settle(self) -> None:
        """Waits for brokers that were started while other faults lasted; one that gave up is started again."""
        launched, self._launched = self._launched, []
        for number in launched:
            try:
                self._cluster.wait_until_ready(number)
            except AssertionError:
                # Its ZooKeeper or its database was away, or its disk full, for longer than a start waits.
                self._cluster.start_again(number)

    def _start(self, number: int) -> None:
        self._cluster.launch(number)
        self._launched.append(number)

    def _any(self) -> int:
        return self._chance.choice([number for number in self._cluster.numbers if number not in self._victims])

    @contextmanager
    def _victim(self, number: int) -> Iterator[int]:
        self._victims.add(number)
        try:
            yield number
        finally:
            self._victims.discard(number)

    @contextmanager
    def _killed(self, whom: Callable[[], int]) -> Iterator[None]:
        with self._victim(whom()) as number:
            self._cluster.kill(number)
            yield
            self._start(number)

    @contextmanager
    def _stopped(self, whom: Callable[[], int]) -> Iterator[None]:
        with self._victim(whom()) as number:
            self._cluster.pause(number)
            yield
            self._cluster.resume(number)

    @contextmanager
    def _restarted(self) -> Iterator[None]:
        with self._victim(self._any()) as number:
            # One that another fault has just started may not listen to signals yet, which ends it too.
            is_starting = number in self._launched
            self._cluster.stop(number, may_be_starting=is_starting)
            self._start(number)
            yield


class Saboteur(BrokerSaboteur):
    """Hurts a cluster with all that it needs: brokers, the links between them, disks and ZooKeeper."""

    def __init__(
        self,
        cluster: Cluster,
        zookeepers: Sequence[ZooKeeperProcess],
        disks: Disks,
        lease_s: float,
        chance: random.Random,
        only: Sequence[str] = (),
        overlap: int = 1,
    ) -> None:
        self._zookeepers = zookeepers
        self._disks = disks
        self.hung_zookeepers = 0
        """How often ZooKeeper itself had to be restarted."""
        super().__init__(cluster, lease_s, chance, only, overlap, disks.missing)

    def _settle(self) -> None:
        self._restart_hung_zookeeper()
        super()._settle()

    def _all(self) -> list[Fault]:
        cluster = self._cluster
        faults = [
            Fault(KILL, "any broker", lambda: self._killed(self._any), 0, 2),
            Fault(KILL, "the controller", lambda: self._killed(self._controller), 0, 2),
            Fault(KILL, "coordinator of a group", lambda: self._killed(self._of_group), 0, 2),
            Fault(KILL, "coordinator of transactions", lambda: self._killed(self._of_transactions), 0, 2),
            Fault(KILL, "two brokers", self._two_killed, 0, 1.5, victims=2),
            Fault(KILL, "and started at once", lambda: self._killed(self._any)),
            Fault(STOP, "beyond the lease", lambda: self._stopped(self._any), 1.3, 2.5),
            Fault(STOP, "for a moment", lambda: self._stopped(self._any), 0.1, 0.8),
            self._network("a broker from the others", lambda: self._cut(cluster.cut_off_from_brokers)),
            self._network("a broker from ZooKeeper and the others", lambda: self._cut(self._isolate)),
            self._network("a broker from everything", lambda: self._cut(cluster.cut_off_from_all)),
            self._network("a broker in one direction", lambda: self._cut(cluster.silence)),
            Fault(NETWORK, "in two halves", self._split, 0.5, 4, victims=0, needs=LINKS),
            Fault(
                TREE,
                "session of a broker expires",
                lambda: self._cut(cluster.cut_off_from_tree),
                1.3,
                4,
                needs=LINKS,
            ),
            Fault(TREE, "sessions of all expire", self._all_cut_from_tree, 1.3, 4, victims=0, needs=LINKS),
            Fault(TREE, "out of reach for a moment", self._all_cut_from_tree, 0.1, 0.7, victims=0, needs=LINKS),
            self._servers("stopped", self._tree_stopped, 0.5, 3.5),
            self._servers("restarted", lambda: self._tree_killed(len(self._zookeepers)), 0, 2),
            Fault(FULL, "and room again", self._full, 1, 4),
            Fault(FULL, "kill -9 meanwhile", self._full_and_killed, 0.5, 2),
            Fault(SLOW, "writes and syncs", self._slow, 1, 4),
            Fault(RESTART, "a broker, in order", self._restarted),
            Fault(RESTART, "rolling, all brokers", self._rolling, victims=0, needs=ALL),
        ]
        if len(self._zookeepers) > 1:
            faults += [
                self._servers("a member is killed", lambda: self._tree_killed(1)),
                self._servers("its leader is killed", self._tree_leader_killed),
                self._servers("quorum is lost", lambda: self._tree_killed(len(self._zookeepers) // 2 + 1)),
            ]
        return faults

    def _network(self, name: str, hurt: Callable[[], AbstractContextManager[None]]) -> Fault:
        return Fault(NETWORK, name, hurt, 0.5, 4, needs=LINKS)

    def _servers(
        self, name: str, hurt: Callable[[], AbstractContextManager[None]], least: float = 0.5, most: float = 3
    ) -> Fault:
        return Fault(TREE, name, hurt, least, most, victims=0, needs=SERVERS)

    def _controller(self) -> int:
        return self._unless_unknown(self._cluster.controller)

    def _of_group(self) -> int:
        return self._unless_unknown(lambda: self._cluster.coordinator_of_group("group-of-watched"))

    def _of_transactions(self) -> int:
        return self._unless_unknown(lambda: self._cluster.coordinator_of_transactions("one"))

    def _unless_unknown(self, find: Callable[[], int]) -> int:
        """Any broker, if another fault keeps the wanted one from being known, or has chosen it already."""
        if self._victims:
            return self._any()
        with contextlib.suppress(AssertionError):
            found = find()
            if found not in self._victims:
                return found
        return self._any()

    @contextmanager
    def _two_killed(self) -> Iterator[None]:
        with self._victim(self._any()) as first, self._victim(self._any()) as second:
            self._cluster.kill(first)
            time.sleep(self._chance.uniform(0, 1.5 * self._lease_s))
            self._cluster.kill(second)
            yield
            for number in self._chance.sample((first, second), 2):
                self._start(number)

    @contextmanager
    def _cut(self, cut: Callable[[int], None]) -> Iterator[None]:
        with self._victim(self._any()) as number:
            cut(number)
            yield
            self._cluster.repair()

    def _isolate(self, number: int) -> None:
        """Clients still reach it: whatever they write there must not count."""
        self._cluster.cut_off_from_brokers(number)
        self._cluster.cut_off_from_tree(number)

    @contextmanager
    def _split(self) -> Iterator[None]:
        """One side, sometimes the larger one, does not reach ZooKeeper either."""
        numbers = self._cluster.numbers
        side = set(self._chance.sample(numbers, len(numbers) // 2))
        self._cluster.split(side)
        self._cluster.cut_off_from_tree(*self._chance.choice((side, set(numbers) - side, ())))
        yield
        self._cluster.repair()

    @contextmanager
    def _all_cut_from_tree(self) -> Iterator[None]:
        self._cluster.cut_off_from_tree(*self._cluster.numbers)
        yield
        self._cluster.repair()

    @contextmanager
    def _tree_stopped(self) -> Iterator[None]:
        for member in self._zookeepers:
            member.pause()
        yield
        for member in self._zookeepers:
            member.resume()

    @contextmanager
    def _tree_killed(self, count: int) -> Iterator[None]:
        with self._without(self._chance.sample(self._zookeepers, count)):
            yield

    @contextmanager
    def _tree_leader_killed(self) -> Iterator[None]:
        with self._without([member for member in self._zookeepers if member.mode() == "leader"]):
            yield

    @contextmanager
    def _without(self, members: Sequence[ZooKeeperProcess]) -> Iterator[None]:
        for member in members:
            member.kill()
        yield
        for member in members:
            member.launch()
        for member in members:
            member.wait_until_serving()

    def _restart_hung_zookeeper(self) -> None:
        """Restarts an ensemble whose members are connected and commit nothing any more.

        ZooKeeper 3.8.0 comes to that now and then after its members were paused or restarted in quick succession: its
        leader has the acknowledgements of all, and does not commit (ZOOKEEPER-4712 and its relatives). Brokers renew
        their sessions all the time, so that an ensemble that works has something to commit.
        """
        seen = {member.last_commit() for member in self._zookeepers}
        try:
            until(
                lambda: {member.last_commit() for member in self._zookeepers} - seen - {None},
                "ZooKeeper commits",
                _ZOOKEEPER_PATIENCE_S,
            )
        except AssertionError:
            with self._without(self._zookeepers):
                self.hung_zookeepers += 1

    @contextmanager
    def _full(self) -> Iterator[None]:
        with self._victim(self._any()) as number:
            self._disks.fill(number, self._chance.choice((0, 4096, 65536)))
            yield
            self._disks.make_room(number)

    @contextmanager
    def _full_and_killed(self) -> Iterator[None]:
        with self._victim(self._any()) as number:
            self._disks.fill(number, self._chance.choice((0, 4096, 65536)))
            time.sleep(self._chance.uniform(0.5, 2) * self._lease_s)
            self._cluster.kill(number)
            yield
            self._disks.make_room(number)
            self._start(number)

    @contextmanager
    def _slow(self) -> Iterator[None]:
        with self._victim(self._any()) as number:
            self._disks.slow_down(number, self._chance.uniform(0.005, 0.1), self._chance.uniform(0.05, 0.5))
            yield
            self._disks.speed_up(number)

    @contextmanager
    def _rolling(self) -> Iterator[None]:
        for number in self._cluster.numbers:
            self._cluster.stop(number)
            self._cluster.start_again(number)
            self._cluster.wait_until_whole(_PATIENCE_S)
        yield
