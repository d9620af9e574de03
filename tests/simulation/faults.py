"""What goes wrong, and when: drawn from the seed.

Each run has some of the kinds only, so that no kind hides another. Everything that was broken is whole again after
`stop`; brokers that are down come back by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from .broker import Broker
from .network import Network
from .tree import TOPIC, Tree
from .world import Node, World

_PAUSE_BETWEEN_MS = 350.0

KINDS = (
    "loss",
    "slow network",
    "partition",
    "one-sided partition",
    "cut off from the tree",
    "cut off from the tree and from brokers",
    "cut off from clients",
    "tree outage",
    "crash",
    "power loss",
    "pause",
    "lease loss",
    "controller death",
    "slow follower",
    "clock jump",
    "full disk",
    "orderly stop",
)


class Faults:
    """Breaks things until it is told to stop."""

    def __init__(self, world: World, network: Network, tree: Tree, brokers: list[Broker], clients: Node) -> None:
        self._world, self._network, self._tree, self._brokers, self._clients = world, network, tree, brokers, clients
        self._is_over = False
        self._undo: dict[int, Callable[[], None]] = {}
        self._count = 0
        kinds = {
            "loss": self._lose_messages,
            "slow network": self._slow_network,
            "partition": self._split,
            "one-sided partition": self._split_one_sided,
            "cut off from the tree": self._cut_from_tree,
            "cut off from the tree and from brokers": self._cut_from_all,
            "cut off from clients": self._cut_from_clients,
            "tree outage": self._tree_outage,
            "crash": self._crash,
            "power loss": self._lose_power,
            "pause": self._pause,
            "lease loss": self._lose_lease,
            "controller death": self._kill_controller,
            "slow follower": self._slow_follower,
            "clock jump": self._jump,
            "full disk": self._fill_disk,
            "orderly stop": self._stop_broker,
        }
        random = world.random
        self.names = random.sample(KINDS, random.randint(1, 7))
        self._kinds = kinds

    def begin(self) -> None:
        if self._is_over:
            return
        self._world.after(self._world.random.expovariate(1.0 / _PAUSE_BETWEEN_MS), None, self.begin)
        name = self._world.random.choice(self.names)
        if self._kinds[name]():
            self._world.counts[f"fault: {name}"] += 1
            if self._world.trace is not None:
                self._world.tell(f"fault: {name}")

    def stop(self) -> None:
        self._is_over = True
        for undo in list(self._undo.values()):
            undo()
        self._undo.clear()
        for broker in self._brokers:
            broker.dies_deciding = False

    def _for_a_while(self, undo: Callable[[], None], longest_ms: float = 2500.0) -> bool:
        self._count += 1
        number = self._count
        self._undo[number] = undo

        def end() -> None:
            if self._undo.pop(number, None) is not None:
                undo()

        self._world.after(self._world.random.uniform(50.0, longest_ms), None, end)
        return True

    def _cut(self, ways: list[tuple[str, str]]) -> bool:
        for way in ways:
            self._network.cut_off(*way)

        def undo() -> None:
            for way in ways:
                self._network.join(*way)

        return self._for_a_while(undo)

    def _one(self) -> Broker | None:
        """Somebody who is up; a leader more often than not."""
        up = [broker for broker in self._brokers if broker.is_up and not broker.is_paused]
        if not up:
            return None
        random = self._world.random
        if random.random() < 0.6:
            leaders = {part.leader for part in self._tree.view.image.topics[TOPIC].partitions}
            leading = [broker for broker in up if broker.id in leaders]
            if leading:
                return random.choice(leading)
        return random.choice(up)

    # The network

    def _lose_messages(self) -> bool:
        self._network.loss = self._world.random.uniform(0.02, 0.4)

        def undo() -> None:
            self._network.loss = 0.0

        return self._for_a_while(undo)

    def _slow_network(self) -> bool:
        name = self._world.random.choice([broker.name for broker in self._brokers] + ["tree"])
        self._network.slow[name] = self._world.random.choice((30.0, 150.0, 700.0))

        def undo() -> None:
            self._network.slow.pop(name, None)

        return self._for_a_while(undo)

    def _split(self) -> bool:
        names = [broker.name for broker in self._brokers]
        self._world.random.shuffle(names)
        at = self._world.random.randint(1, len(names) - 1)
        return self._cut([way for a in names[:at] for b in names[at:] for way in ((a, b), (b, a))])

    def _split_one_sided(self) -> bool:
        a, b = self._world.random.sample([broker.name for broker in self._brokers], 2)
        return self._cut([(a, b)])

    def _cut_from_tree(self) -> bool:
        broker = self._one()
        if broker is None:
            return False
        ways = [(broker.name, "tree"), ("tree", broker.name)]
        return self._cut(ways if self._world.random.random() < 0.5 else [self._world.random.choice(ways)])

    def _cut_from_all(self) -> bool:
        """Clients still reach it."""
        broker = self._one()
        if broker is None:
            return False
        others = ["tree"] + [other.name for other in self._brokers if other is not broker]
        return self._cut([way for other in others for way in ((broker.name, other), (other, broker.name))])

    def _cut_from_clients(self) -> bool:
        broker = self._one()
        if broker is None:
            return False
        return self._cut([self._world.random.choice([(broker.name, "clients"), ("clients", broker.name)])])

    # The tree

    def _tree_outage(self) -> bool:
        if self._tree.is_paused:
            return False
        self._tree.pause()

        def undo() -> None:
            self._tree.is_back()
            self._tree.resume()

        return self._for_a_while(undo)

    def _lose_lease(self) -> bool:
        broker = self._one()
        session = None if broker is None else self._tree.lease_of(broker)
        if session is None or self._tree.is_paused:
            return False
        self._tree.expire_early(session)
        return True

    # Processes

    def _fill_disk(self) -> bool:
        broker = self._one()
        if broker is None or broker.is_full:
            return False
        broker.is_full = True

        def undo() -> None:
            broker.is_full = False

        return self._for_a_while(undo)

    def _crash(self) -> bool:
        broker = self._one()
        if broker is None:
            return False
        broker.kill(self._away_ms())
        return True

    def _lose_power(self) -> bool:
        """Of one broker, seldom of two at once."""
        if self._world.random.random() < 0.1:
            first, second = self._world.random.choice(list(combinations(self._brokers, 2)))
            first.lose_power()
            second.lose_power()
            return True
        broker = self._one() if self._world.random.random() < 0.8 else self._world.random.choice(self._brokers)
        if broker is None:
            return False
        broker.lose_power()
        return True

    def _pause(self) -> bool:
        broker = self._one()
        if broker is None:
            return False
        broker.pause()
        incarnation = broker.incarnation

        def undo() -> None:
            if broker.incarnation == incarnation:
                broker.resume()

        return self._for_a_while(undo)

    def _kill_controller(self) -> bool:
        """It dies in the middle of a decision, for which somebody else has to die first."""
        controller = self._tree.view.controller
        for broker in self._brokers:
            if broker.session == controller and broker.is_up:
                broker.dies_deciding = True
        victim = self._one()
        if victim is not None and victim.session != controller:
            victim.kill(self._away_ms())
        return True

    def _slow_follower(self) -> bool:
        broker = self._one()
        if broker is None:
            return False
        broker.slow_ms = self._world.random.uniform(50.0, 600.0)

        def undo() -> None:
            broker.slow_ms = 0.0

        return self._for_a_while(undo)

    def _jump(self) -> bool:
        broker = self._world.random.choice(self._brokers)
        broker.wall_offset_ms += self._world.random.choice((-3_600_000.0, -2000.0, 2000.0, 3_600_000.0))
        return True

    def _stop_broker(self) -> bool:
        broker = self._one()
        if broker is None or not broker.is_joined or broker.is_stopping:
            return False
        broker.stop()
        return True

    def _away_ms(self) -> float:
        """Often shorter than a lease: a broker may be back before anybody has missed it."""
        return self._world.random.choice((20.0, 100.0, 400.0, 1200.0, 3000.0)) * self._world.random.uniform(0.5, 1.5)
