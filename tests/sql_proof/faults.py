"""What is done to brokers on a database, and to the database."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from chaos.faults import KILL, RESTART, STOP, BrokerSaboteur, Fault
from support.cluster import Cluster
from support.stores import DatabaseServer

from .writers import TOPIC

MOVE, DATABASE = "move", "database"
SERVER = "the database server"


class SqlSaboteur(BrokerSaboteur):
    """Victims are mostly the broker that leads the partition."""

    def __init__(
        self,
        cluster: Cluster,
        server: DatabaseServer,
        lease_s: float,
        chance: random.Random,
        only: Sequence[str] = (),
        overlap: int = 1,
    ) -> None:
        self._server = server
        super().__init__(cluster, lease_s, chance, only, overlap)

    def _all(self) -> list[Fault]:
        return [
            Fault(KILL, "the leader", lambda: self._killed(self._leader), 0, 2),
            Fault(KILL, "the leader, started at once", lambda: self._killed(self._leader)),
            Fault(KILL, "any broker", lambda: self._killed(self._any), 0, 2),
            Fault(STOP, "the leader, beyond the lease", lambda: self._stopped(self._leader), 1.3, 2.5),
            Fault(STOP, "the leader, for a moment", lambda: self._stopped(self._leader), 0.1, 0.8),
            Fault(RESTART, "a broker, in order", self._restarted),
            Fault(MOVE, "there and back", self._moved, victims=0),
            Fault(DATABASE, "kill -9, started at once", self._database_killed, victims=0, needs=SERVER),
            Fault(DATABASE, "kill -9", self._database_killed, 0.2, 1.5, victims=0, needs=SERVER),
            Fault(DATABASE, "stopped", self._database_stopped, 0.2, 1.5, victims=0, needs=SERVER),
        ]

    def _leader(self) -> int:
        """Any broker, if another fault keeps it from being known, or has chosen it already."""
        with contextlib.suppress(AssertionError):
            leader = self._cluster.leader(TOPIC)
            if leader not in self._victims:
                return leader
        return self._any()

    @contextmanager
    def _moved(self) -> Iterator[None]:
        """The partition goes from broker to broker, sometimes before the last one has taken it over."""
        for _ in range(self._chance.randint(2, 8)):
            with contextlib.suppress(OSError, EOFError, AssertionError):
                self._cluster.move(TOPIC, 0, self._any())
            time.sleep(self._chance.choice((0.0, 0.05, 0.3)))
        yield

    @contextmanager
    def _database_killed(self) -> Iterator[None]:
        self._server.kill()
        yield
        self._server.start()

    @contextmanager
    def _database_stopped(self) -> Iterator[None]:
        self._server.pause()
        yield
        self._server.resume()
