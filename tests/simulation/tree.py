"""The coordination tree: commits in one order by the rule of the clock, sessions, leases, election of a controller.

It does not fail, as an ensemble with a quorum does not; it may be out of reach for one broker or for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from penstock.cluster.metadata import MetadataImage
from penstock.ids import BrokerId

from .judge import Judge
from .machines import Timing
from .network import Network
from .world import Node, World

if TYPE_CHECKING:
    from .broker import Broker

SessionId = int

TOPIC = "t"
"""The one topic that there is."""


class Kind(Enum):
    """What a commit is for."""

    JOIN = "join"
    STEP_DOWN = "step down"
    RESIGN = "resign"
    BURY = "bury"
    PREFER = "prefer"
    IN_SYNC = "in-sync set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A decision made on the image of version `base`."""

    kind: Kind
    base: int
    image: MetadataImage
    controller_epoch: int | None = None
    """Of the controller that decided it."""
    dead: Collection[BrokerId] = ()
    """Brokers that must not have a lease."""


@dataclass(frozen=True, slots=True)
class View:
    """What the tree holds at one moment; `serial` rises with every change, the image's version with every commit."""

    serial: int
    image: MetadataImage
    leases: Mapping[BrokerId, SessionId]
    controller: SessionId | None
    controller_epoch: int


class Tree(Node):
    """The tree, and who is connected to it."""

    def __init__(self, world: World, network: Network, judge: Judge, timing: Timing, image: MetadataImage) -> None:
        super().__init__("tree")
        self.view = View(0, image, {}, None, 0)
        self._world, self._network, self._judge, self._timing = world, network, judge, timing
        self._sessions: dict[SessionId, Broker] = {}
        self._deadlines: dict[SessionId, float] = {}
        self._opened = 0
        self._over: set[SessionId] = set()

    def new_session(self) -> SessionId:
        self._opened += 1
        return self._opened

    def pinged(self, broker: Broker, session: SessionId, sent_ms: float) -> None:
        """A sign of life; the first one opens the session."""
        if session not in self._over:
            if session not in self._sessions:
                self._sessions[session] = broker
                self._world.after(self._timing.lease, None, self._look, session)
            self._deadlines[session] = self._world.now_ms + self._timing.lease
        self._network.send(self, broker, broker.ponged, session, sent_ms, session not in self._over, self.view)

    def expire_early(self, session: SessionId) -> None:
        """As somebody who may do anything to an ensemble could: the one way in which a lease ends before its time."""
        self._judge.is_lease_certain = False
        self.close(session)

    def close(self, session: SessionId) -> None:
        broker = self._sessions.pop(session, None)
        if broker is None:
            return
        self._over.add(session)
        view = self.view
        leases = {who: held for who, held in view.leases.items() if held != session}
        controller = None if view.controller == session else view.controller
        if self._world.trace is not None:
            self._world.tell(f"tree: the session of {broker.name} is over")
        self._change(replace(view, leases=leases, controller=controller))

    def claim(self, broker: Broker, session: SessionId) -> None:
        """A broker wants to be controller."""
        if self.view.controller is None and session in self._sessions:
            if self._world.trace is not None:
                self._world.tell(f"tree: {broker.name} is controller, epoch {self.view.controller_epoch + 1}")
            self._world.counts["controllers"] += 1
            view = self.view
            image = replace(view.image, version=view.image.version + 1, controller=broker.id)
            self._change(replace(view, image=image, controller=session, controller_epoch=view.controller_epoch + 1))

    def commit(self, broker: Broker, session: SessionId, commit: Commit) -> None:
        if self._accepts(session, commit):
            view = self.view
            leases = dict(view.leases)
            if commit.kind is Kind.JOIN:
                leases[broker.id] = session
            elif commit.kind is Kind.RESIGN:
                leases.pop(broker.id, None)
            self._judge.committed(broker, commit, view.image)
            self._world.counts["commits"] += 1
            self._change(replace(view, image=commit.image, leases=leases))
        else:
            self._world.counts["commits refused"] += 1
        self._network.send(self, broker, broker.take, self.view)

    def lease_of(self, broker: Broker) -> SessionId | None:
        return self.view.leases.get(broker.id)

    def is_back(self) -> None:
        """After an outage: an ensemble that has elected a leader gives every session its whole time anew, one that
        stood still ends those whose time is over.
        """
        if self._world.random.random() < 0.5:
            return
        for session in self._deadlines:
            self._deadlines[session] = self._world.now_ms + self._timing.lease

    def _accepts(self, session: SessionId, commit: Commit) -> bool:
        view = self.view
        return (
            session in self._sessions
            and commit.base == view.image.version
            and (commit.controller_epoch is None or commit.controller_epoch == view.controller_epoch)
            and not any(dead in view.leases for dead in commit.dead)
        )

    def _change(self, view: View) -> None:
        self.view = replace(view, serial=view.serial + 1)
        for broker in self._sessions.values():
            self._network.send(self, broker, broker.take, self.view)

    def _look(self, session: SessionId) -> None:
        left = self._deadlines.get(session, 0.0) - self._world.now_ms
        if session not in self._sessions:
            self._deadlines.pop(session, None)
        elif self.is_paused or left > 0:
            self._world.after(max(left, 50.0), None, self._look, session)
        else:
            self._world.counts["leases ended"] += 1
            self.close(session)
