"""Brokers that are one: processes on one ZooKeeper or one database, each of which can be killed, stopped, paused and
cut off.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.protocol import apis
from penstock.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.find_coordinator import GROUP, TRANSACTION, FindCoordinatorRequest
from penstock.protocol.messages.metadata import MetadataRequest
from support import pausing
from support.access import Access
from support.broker_process import BrokerProcess
from support.links import Gate, Links
from support.ports import free_ports
from support.sasl import connect
from support.waiting import PATIENCE_S, until
from support.wire import Wire

REPLICAS = 3
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """A partition as Metadata describes it."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]
    epoch: int

    @property
    def is_whole(self) -> bool:
        return self.leader in self.in_sync and self.in_sync == set(self.replicas)


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as one broker describes it."""

    brokers: frozenset[int]
    controller: int
    places: Mapping[tuple[str, int], Place]


class Cluster:
    """Brokers by number, from 1. With `gates` everything between them, and to ZooKeeper, can be cut."""

    def __init__(
        self,
        folder: Path,
        coordinator: str | None,
        *,
        size: int = 3,
        settings: Mapping[str, object] | None = None,
        racks: Sequence[str] = (),
        gates: bool = False,
        access: Access | None = None,
        env: Callable[[int], Mapping[str, str]] = lambda number: {},
    ) -> None:
        """`coordinator` is HOST:PORT,HOST:PORT/PATH of the tree; `env` is what a broker has in its environment. Brokers
        without a coordinator meet in the database that their environment names. `access` is who asks brokers that want
        to know.
        """
        assert coordinator is not None or not gates
        self.access = access
        self._links = Links() if gates else None
        self._to_broker: dict[int, Gate] = {}
        """To its inter-broker listener."""
        self._for_clients: dict[int, Gate] = {}
        self._to_tree: dict[int, list[Gate]] = {}
        self._env = env
        self._coordinator = coordinator
        self._paused: set[int] = set()
        self._folder = folder
        self._racks = racks
        self._settings = {"broker.default_replication_factor": min(REPLICAS, size), **(settings or {})}
        self.numbers = tuple(range(1, size + 1))
        self.brokers: dict[int, BrokerProcess] = {}

    def __enter__(self) -> Cluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def kafka(self) -> str:
        """Where clients begin: the addresses of all."""
        servers = ",".join(
            self._for_clients[number].address if self._links else broker.kafka
            for number, broker in self.brokers.items()
        )
        return servers if self.access is None else self.access.at(servers)

    @property
    def logs(self) -> str:
        return "\n".join(f"--- broker {number}\n{broker.log_tail}" for number, broker in self.brokers.items())

    @property
    def complaints(self) -> list[str]:
        """Lines of the logs that nobody expects."""
        return [
            f"broker {number}: {line}"
            for number, broker in self.brokers.items()
            for line in broker.log.splitlines()
            if "Traceback" in line or " CRITICAL " in line
        ]

    def start(self) -> Cluster:
        if self._links is not None:
            self._links.__enter__()
        ports = free_ports(2 * len(self.numbers))
        for number, port, inter_broker in zip(self.numbers, ports[::2], ports[1::2], strict=True):
            self.brokers[number] = self._new_broker(number, f"127.0.0.1:{port}", f"127.0.0.1:{inter_broker}")
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.wait_until_ready()
        return self

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        if self._links is not None and self._to_tree:
            self._links.__exit__(None, None, None)
            self._to_tree.clear()

    def kill(self, number: int) -> None:
        """As a crash would, paused or not."""
        self.brokers[number].kill()
        self._paused.discard(number)

    def stop(self, number: int, *, may_be_starting: bool = False) -> None:
        status = self.brokers[number].stop()
        if may_be_starting and status == -signal.SIGTERM:
            return
        assert status == 0, f"broker {number} stopped with status {status}:\n{self.brokers[number].log_tail}"

    def start_again(self, *numbers: int) -> None:
        """All at once; returns when all are ready."""
        self.launch(*numbers)
        self.wait_until_ready(*numbers)

    def launch(self, *numbers: int) -> None:
        """Starts them without waiting."""
        for number in numbers:
            self.brokers[number].launch()

    def wait_until_ready(self, *numbers: int) -> None:
        for number in numbers:
            self.brokers[number].wait_until_ready()

    def add(self) -> int:
        """One more broker, with the next number; returns when it is ready."""
        number = len(self.numbers) + 1
        port, inter_broker = free_ports(2)
        self.brokers[number] = self._new_broker(number, f"127.0.0.1:{port}", f"127.0.0.1:{inter_broker}")
        self.numbers = (*self.numbers, number)
        self.start_again(number)
        return number

    def pause(self, number: int) -> None:
        pausing.pause(self.brokers[number].pid)
        self._paused.add(number)

    def resume(self, number: int) -> None:
        pausing.resume(self.brokers[number].pid)
        self._paused.discard(number)

    def heal(self) -> None:
        """Whatever was done to it before: all are there and reach each other."""
        self.repair()
        for number in tuple(self._paused):
            self.resume(number)
        self.start_again(*(number for number, broker in self.brokers.items() if not broker.is_alive))
        self.wait_until_whole()

    def cut_off_from_brokers(self, number: int) -> None:
        """Nothing passes between this broker and the others, in no direction; clients reach all of them."""
        self.split({number})

    def split(self, side: Set[int]) -> None:
        """Nothing passes between these brokers and the others, in no direction; clients reach all of them."""
        for number, gate in self._to_broker.items():
            gate.shut([_name(each) for each in self.numbers if (each in side) != (number in side)])

    def silence(self, number: int) -> None:
        """What this broker asks of others does not arrive; what others, and clients, ask of it does."""
        for other, gate in self._to_broker.items():
            gate.shut([_name(number)] if other != number else ())

    def cut_off_from_all(self, number: int) -> None:
        """Nobody reaches this broker, no client either, and it reaches neither the others nor ZooKeeper."""
        self.cut_off_from_brokers(number)
        self._for_clients[number].shut()
        self.cut_off_from_tree(number)

    def cut_off_from_tree(self, *numbers: int) -> None:
        """Nothing passes between these brokers and ZooKeeper."""
        for number in numbers:
            for gate in self._to_tree[number]:
                gate.shut()

    def repair(self) -> None:
        """Everything passes again."""
        gates = [*self._to_broker.values(), *self._for_clients.values(), *chain.from_iterable(self._to_tree.values())]
        for gate in gates:
            gate.open()

    def wire(self, number: int, patience_s: float = PATIENCE_S) -> Wire:
        """A connection to one broker, that has logged in if brokers want that."""
        return connect(self.access, self.brokers[number].address, patience_s)

    def alive(self) -> list[int]:
        """Those that can answer."""
        return [number for number in self.numbers if self.brokers[number].is_alive and number not in self._paused]

    def view(self, number: int | None = None) -> View:
        """What a broker says, by default the first that answers; OSError or EOFError if it does not."""
        if number is not None:
            return self._view(number)
        for candidate in self.alive():
            with contextlib.suppress(OSError, EOFError):
                return self._view(candidate)
        raise ConnectionError("no broker answers")

    def leader(self, topic: str, partition: int = 0) -> int:
        """Waits for one that is there."""

        def found() -> int | None:
            with contextlib.suppress(OSError, EOFError):
                place = self.view().places.get((topic, partition))
                if place is not None and place.leader in self.alive():
                    return place.leader
            return None

        leader = until(found, f"{topic}-{partition} has a leader")
        assert leader is not None
        return leader

    def controller(self) -> int:
        def found() -> int | None:
            with contextlib.suppress(OSError, EOFError):
                number = self.view().controller
                return number if number in self.alive() else None
            return None

        controller = until(found, "there is a controller")
        assert controller is not None
        return controller

    def move(self, topic: str, partition: int, number: int) -> None:
        """Asks the controller to move a partition to one broker; OSError or EOFError if it does not answer."""
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=int(_ANSWER_S * 1000),
            topics=(
                ReassignableTopic(
                    name=topic, partitions=(ReassignablePartition(partition_index=partition, replicas=(number,)),)
                ),
            ),
        )
        with self.wire(self.controller(), _ANSWER_S) as wire:
            wire.ask(apis.ALTER_PARTITION_REASSIGNMENTS, 0, request)

    def coordinator_of_group(self, name: str) -> int:
        return self._coordinator_of(name, GROUP)

    def coordinator_of_transactions(self, name: str) -> int:
        """By their transactional id."""
        return self._coordinator_of(name, TRANSACTION)

    def wait_until(self, numbers: Sequence[int], topic: str, partition: int = 0) -> None:
        """Waits until exactly these are in sync."""

        def is_so() -> bool:
            with contextlib.suppress(OSError, EOFError):
                place = self.view().places.get((topic, partition))
                return place is not None and place.in_sync == set(numbers)
            return False

        until(is_so, f"{topic}-{partition} is in sync on {numbers}", 2 * PATIENCE_S)

    def wait_until_known(self, topic: str) -> None:
        """Every broker that runs knows the topic: the one that was asked for it is the first."""

        def is_so() -> bool:
            with contextlib.suppress(OSError, EOFError):
                return all(any(name == topic for name, _ in self._view(number).places) for number in self.alive())
            return False

        until(is_so, f"every broker knows {topic}")

    def wait_until_whole(self, patience_s: float = 2 * PATIENCE_S) -> None:
        """Every broker says the same: all are there, and every replica of everything is in sync."""
        missing = ""

        def is_whole() -> bool:
            nonlocal missing
            for number in self.numbers:
                try:
                    view = self._view(number)
                except (OSError, EOFError) as error:
                    missing = f"broker {number}: {error}"
                    return False
                if view.brokers != set(self.numbers):
                    missing = f"broker {number} sees {sorted(view.brokers)}"
                    return False
                for (topic, partition), place in view.places.items():
                    if not place.is_whole:
                        missing = f"broker {number}: {topic}-{partition} is {place}"
                        return False
            return True

        try:
            until(is_whole, "the cluster is whole", patience_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {missing}") from None

    def _coordinator_of(self, name: str, kind: int) -> int:
        asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=(name,))

        def found() -> int | None:
            for number in self.alive():
                with contextlib.suppress(OSError, EOFError), self.wire(number, _ANSWER_S) as wire:
                    (answer,) = wire.ask(apis.FIND_COORDINATOR, 4, asked)["coordinators"]
                    if answer["error_code"] == 0 and answer["node_id"] in self.alive():
                        node: int = answer["node_id"]
                        return node
            return None

        coordinator = until(found, f"{name} has a coordinator")
        assert coordinator is not None
        return coordinator

    def _view(self, number: int) -> View:
        with self.wire(number, _ANSWER_S) as wire:
            answer = wire.ask(apis.METADATA, 12, MetadataRequest(topics=None, allow_auto_topic_creation=False))
        places = {
            (topic["name"], found["partition_index"]): _place(found)
            for topic in answer["topics"]
            for found in topic["partitions"]
        }
        return View(frozenset(each["node_id"] for each in answer["brokers"]), answer["controller_id"], places)

    def _new_broker(self, number: int, address: str, inter_broker: str) -> BrokerProcess:
        settings, coordinator = dict(self._settings), self._coordinator
        if self._links is not None and coordinator is not None:
            servers, slash, path = coordinator.partition("/")
            self._for_clients[number] = self._links.gate(address)
            self._to_broker[number] = self._links.gate(inter_broker, knows_callers=True)
            self._to_tree[number] = [self._links.gate(server) for server in servers.split(",")]
            settings["broker.advertised"] = (
                f"PLAINTEXT://{self._for_clients[number].address},INTER_BROKER://{self._to_broker[number].address}"
            )
            coordinator = ",".join(gate.address for gate in self._to_tree[number]) + slash + path
        if self._racks:
            settings["broker.rack"] = self._racks[number - 1]
        options = ["--id", str(number)]
        if coordinator is not None:
            options += ["--coordinator", f"zk://{coordinator}"]
        broker = BrokerProcess(self._folder / f"broker-{number}", settings, options, self._env(number))
        broker.kafka = address
        if self._links is not None:
            # Without gates brokers find each other by themselves, as those of users do.
            broker.inter_broker = inter_broker
        return broker


def _name(number: int) -> str:
    """What a broker calls itself to others."""
    return f"penstock-{number}"


def _place(found: Mapping[str, Any]) -> Place:
    return Place(
        found["leader_id"], tuple(found["replica_nodes"]), frozenset(found["isr_nodes"]), found["leader_epoch"]
    )
