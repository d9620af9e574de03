"""What is done to clients, to brokers beside them, and to the database of all."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from chaos.faults import KILL, RESTART, STOP, BrokerSaboteur, Fault
from support.cluster import Cluster
from support.stores import DatabaseServer

from .fleet import Fleet

DATABASE = "database"
SERVER = "the database server"
CLIENTS = "the processes of clients"


class DirectSaboteur(BrokerSaboteur):
    """Kills clients, brokers if there are some, and the database."""

    def __init__(
        self,
        cluster: Cluster,
        fleet: Fleet,
        server: DatabaseServer,
        lease_s: float,
        chance: random.Random,
        only: Sequence[str] = (),
        overlap: int = 1,
    ) -> None:
        self._fleet = fleet
        self._server = server
        super().__init__(cluster, lease_s, chance, only, overlap)

    def _all(self) -> list[Fault]:
        def clients(
            kind: str, name: str, producers: int, consumers: int, least: float = 0.0, most: float = 0.0
        ) -> Fault:
            hurt = self._clients_killed if kind == KILL else self._clients_paused
            return Fault(kind, name, lambda: hurt(producers, consumers), least, most, victims=0, needs=CLIENTS)

        faults = [
            clients(KILL, "a producer", 1, 0),
            clients(KILL, "a consumer", 0, 1),
            clients(KILL, "half of the producers and of the consumers", 4, 2, 0, 1),
            clients(KILL, "all consumers", 0, 4, 0, 2),
            clients(STOP, "a consumer, beyond its session", 0, 1, 1.3, 2),
            clients(STOP, "a producer and a consumer, for a moment", 1, 1, 0.1, 0.5),
            Fault(DATABASE, "kill -9, started at once", self._database_killed, victims=0, needs=SERVER),
            Fault(DATABASE, "kill -9", self._database_killed, 0.2, 1.5, victims=0, needs=SERVER),
            Fault(DATABASE, "restarted in order", self._database_restarted, 0, 0.5, victims=0, needs=SERVER),
            Fault(DATABASE, "stopped", self._database_paused, 0.2, 1.5, victims=0, needs=SERVER),
        ]
        if self._cluster.numbers:
            faults += [
                Fault(KILL, "any broker", lambda: self._killed(self._any), 0, 2),
                Fault(KILL, "any broker, started at once", lambda: self._killed(self._any)),
                Fault(STOP, "a broker, beyond the lease", lambda: self._stopped(self._any), 1.3, 2.5),
                Fault(RESTART, "a broker, in order", self._restarted),
                Fault(KILL, "all brokers", self._all_brokers_killed, 0, 3, victims=len(self._cluster.numbers)),
            ]
        return faults

    def _some(self, producers: int, consumers: int) -> list[str]:
        fleet = self._fleet
        return [
            *self._chance.sample(fleet.producers, min(producers, len(fleet.producers))),
            *self._chance.sample(fleet.consumers, min(consumers, len(fleet.consumers))),
        ]

    @contextmanager
    def _clients_killed(self, producers: int, consumers: int) -> Iterator[None]:
        slots = self._some(producers, consumers)
        for slot in slots:
            self._fleet.kill(slot)
        yield
        for slot in slots:
            self._fleet.launch(slot)

    @contextmanager
    def _clients_paused(self, producers: int, consumers: int) -> Iterator[None]:
        slots = self._some(producers, consumers)
        for slot in slots:
            self._fleet.pause(slot)
        yield
        for slot in slots:
            self._fleet.resume(slot)

    @contextmanager
    def _all_brokers_killed(self) -> Iterator[None]:
        """A client looks after the queue meanwhile."""
        with ExitStack() as victims:
            numbers = [victims.enter_context(self._victim(number)) for number in self._cluster.numbers]
            for number in numbers:
                self._cluster.kill(number)
            yield
            for number in numbers:
                self._start(number)

    @contextmanager
    def _database_killed(self) -> Iterator[None]:
        self._server.kill()
        yield
        self._server.start()

    @contextmanager
    def _database_restarted(self) -> Iterator[None]:
        self._server.stop()
        yield
        self._server.start()

    @contextmanager
    def _database_paused(self) -> Iterator[None]:
        self._server.pause()
        yield
        self._server.resume()
