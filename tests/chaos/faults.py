"""What is done to a cluster, and undone.

A fault is a `with`: it hurts on entering and heals on leaving, and lasts for a time that is drawn between two bounds.
Faults are dealt like cards, in an order that the seed chooses: every one comes before one comes again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from support.cluster import Cluster
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
_OUTER, _INNER = (KILL, STOP, FULL, SLOW), (STOP, NETWORK, TREE, SLOW)
"""What may last while something else happens, and what may happen then: nothing that starts a broker."""
_BOTH = 0.2
"""How often a second fault happens while the first lasts."""
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    name: str
    hurt: Callable[[], AbstractContextManager[None]]
    least: float = 0.0
    """How long it lasts at least, in leases."""
    most: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What comes next."""

    faults: tuple[Fault, ...]
    _last: Callable[[Fault], None]

    def strike(self) -> None:
        """From the first hurt until everything is healed."""
        with ExitStack() as healing:
            for fault in self.faults:
                healing.enter_context(fault.hurt())
                self._last(fault)


class Saboteur:
    """Hurts the cluster and heals it; no broker is the victim of two faults at a time."""

    def __init__(
        self,
        cluster: Cluster,
        zookeepers: Sequence[ZooKeeperProcess],
        disks: Disks,
        lease_s: float,
        chance: random.Random,
        only: Sequence[str] = (),
    ) -> None:
        """`only` are the names and kinds of the faults that are wanted; all, if there are none."""
        self._cluster = cluster
        self._zookeepers = zookeepers
        self._disks = disks
        self._lease_s = lease_s
        self._chance = chance
        self._victims: set[int] = set()
        wanted = [fault for fault in self._all() if not only or {fault.kind, fault.name} & set(only)]
        self._faults = [fault for fault in wanted if fault.kind not in disks.missing]
        assert self._faults, f"there are no such faults; there are {', '.join(map(str, self._all()))}"
        self._deck: list[Fault] = []

    def next(self) -> Plan:
        """One fault, or two, of which the second comes and goes within the first."""
        if not self._deck:
            self._deck = self._chance.sample(self._faults, len(self._faults))
        outer = self._deck.pop()
        partners = [fault for fault in self._faults if fault.kind in _INNER and fault.kind != outer.kind]
        if outer.kind in _OUTER and partners and self._chance.random() < _BOTH:
            return Plan((outer, self._chance.choice(partners)), self._last)
        return Plan((outer,), self._last)

    def _last(self, fault: Fault) -> None:
        time.sleep(self._chance.uniform(fault.least, fault.most) * self._lease_s)

    def _all(self) -> list[Fault]:
        cluster = self._cluster
        faults = [
            Fault(KILL, "any broker", lambda: self._killed(self._any), 0, 2),
            Fault(KILL, "the controller", lambda: self._killed(cluster.controller), 0, 2),
            Fault(KILL, "coordinator of a group", lambda: self._killed(self._of_group), 0, 2),
            Fault(KILL, "coordinator of transactions", lambda: self._killed(self._of_transactions), 0, 2),
            Fault(KILL, "two brokers", self._two_killed, 0, 1.5),
            Fault(KILL, "and started at once", lambda: self._killed(self._any)),
            Fault(STOP, "beyond the lease", self._stopped, 1.3, 2.5),
            Fault(STOP, "for a moment", self._stopped, 0.1, 0.8),
            Fault(NETWORK, "a broker from the others", lambda: self._cut(cluster.cut_off_from_brokers), 0.5, 4),
            Fault(NETWORK, "a broker from ZooKeeper and the others", lambda: self._cut(self._isolate), 0.5, 4),
            Fault(NETWORK, "a broker from everything", lambda: self._cut(cluster.cut_off_from_all), 0.5, 4),
            Fault(NETWORK, "a broker in one direction", lambda: self._cut(cluster.silence), 0.5, 4),
            Fault(NETWORK, "in two halves", self._split, 0.5, 4),
            Fault(TREE, "session of a broker expires", lambda: self._cut(cluster.cut_off_from_tree), 1.3, 4),
            Fault(TREE, "sessions of all expire", self._all_cut_from_tree, 1.3, 4),
            Fault(TREE, "out of reach for a moment", self._all_cut_from_tree, 0.1, 0.7),
            Fault(TREE, "stopped", self._tree_stopped, 0.5, 2.5),
            Fault(TREE, "restarted", lambda: self._tree_killed(len(self._zookeepers)), 0, 2),
            Fault(FULL, "and room again", self._full, 1, 4),
            Fault(FULL, "kill -9 meanwhile", self._full_and_killed, 0.5, 2),
            Fault(SLOW, "writes and syncs", self._slow, 1, 4),
            Fault(RESTART, "a broker, in order", self._restarted),
            Fault(RESTART, "rolling, all brokers", self._rolling),
        ]
        if len(self._zookeepers) > 1:
            faults += [
                Fault(TREE, "a member is killed", lambda: self._tree_killed(1), 0.5, 3),
                Fault(TREE, "its leader is killed", self._tree_leader_killed, 0.5, 3),
                Fault(TREE, "quorum is lost", lambda: self._tree_killed(len(self._zookeepers) // 2 + 1), 0.5, 3),
            ]
        return faults

    def _any(self) -> int:
        return self._chance.choice([number for number in self._cluster.numbers if number not in self._victims])

    def _of_group(self) -> int:
        return self._cluster.coordinator_of_group("group-of-watched")

    def _of_transactions(self) -> int:
        return self._cluster.coordinator_of_transactions("one")

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
            self._cluster.start_again(number)

    @contextmanager
    def _two_killed(self) -> Iterator[None]:
        with self._victim(self._any()) as first, self._victim(self._any()) as second:
            self._cluster.kill(first)
            time.sleep(self._chance.uniform(0, 1.5 * self._lease_s))
            self._cluster.kill(second)
            yield
            for number in self._chance.sample((first, second), 2):
                self._cluster.start_again(number)

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        with self._victim(self._any()) as number:
            self._cluster.pause(number)
            yield
            self._cluster.resume(number)

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
            self._cluster.start_again(number)

    @contextmanager
    def _slow(self) -> Iterator[None]:
        with self._victim(self._any()) as number:
            self._disks.slow_down(number, self._chance.uniform(0.005, 0.1), self._chance.uniform(0.05, 0.5))
            yield
            self._disks.speed_up(number)

    @contextmanager
    def _restarted(self) -> Iterator[None]:
        number = self._any()
        self._cluster.stop(number)
        self._cluster.start_again(number)
        yield

    @contextmanager
    def _rolling(self) -> Iterator[None]:
        for number in self._cluster.numbers:
            self._cluster.stop(number)
            self._cluster.start_again(number)
            self._cluster.wait_until_whole(_PATIENCE_S)
        yield
