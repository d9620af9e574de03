"""Producers that do anything at any time, with copies of their requests that arrive when nobody expects them, and a
broker that is killed in between: readers see what was committed, once each, and nothing else.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from conftest import BrokerFactory
from penstock.protocol import apis
from support.broker_process import BrokerProcess
from support.transactional import (
    READ_COMMITTED,
    Place,
    Protocol,
    all_committed,
    begun,
    committed_offset,
    last_offset,
)
from support.wire import Wire

NONE = 0
PRODUCERS = 3
STEPS = 250


class Model:
    """Three producers of transaction version 2, what each has in its transaction, and what has to be seen."""

    def __init__(self, broker: BrokerProcess, chance: random.Random) -> None:
        self.broker = broker
        self.chance = chance
        self.wire = Wire(broker.address)
        self.wire.create_topic("orders", partitions=3)
        self.places: list[Place] = [("orders", partition) for partition in range(3)]
        self.producers = [begun(self.wire, f"p{number}") for number in range(PRODUCERS)]
        self.open: list[dict[Place, list[bytes]]] = [{} for _ in range(PRODUCERS)]
        self.pending: list[int | None] = [None] * PRODUCERS
        self.expected: dict[Place, list[bytes]] = {place: [] for place in self.places}
        self.offsets = [-1] * PRODUCERS
        self.late: list[tuple[str, Any]] = []
        """Requests, of which some were sent and others not; any of them may arrive at any time."""
        self.number = 0

    def step(self) -> None:
        which = self.chance.randrange(PRODUCERS)
        actions = (self.write, self.hold, self.take_along, self.end, self.replace, self.deliver_late)
        (action,) = self.chance.choices(actions, (10, 3, 3, 6, 1, 8))
        action(which)

    def write(self, which: int) -> None:
        place, value = self.chance.choice(self.places), self.fresh()
        held = self.producers[which].held(place, value)
        result = self.producers[which].send(held)
        assert result["error_code"] == NONE, result
        self.late.append(("produce", held))
        self.open[which].setdefault(place, []).append(value)

    def hold(self, which: int) -> None:
        """The request is lost on the way, and its producer aborts, as clients do; it may arrive later."""
        self.late.append(("produce", self.producers[which].held(self.chance.choice(self.places), self.fresh())))
        self.end(which, commits=False)

    def take_along(self, which: int) -> None:
        self.number += 1
        self.producers[which].take_along(f"g{which}", {self.places[0]: self.number})
        self.pending[which] = self.number

    def end(self, which: int, commits: bool | None = None) -> None:
        producer = self.producers[which]
        has_something = bool(self.open[which]) or self.pending[which] is not None
        commits = self.chance.random() < 0.6 if commits is None else commits
        commits = commits and has_something
        late = [producer.held_end(committed=chosen) for chosen in (True, False)]
        assert producer.end(committed=commits) == NONE
        self.late += [("end", held) for held in late]
        if commits:
            for place, values in self.open[which].items():
                self.expected[place] += values
            if self.pending[which] is not None:
                self.offsets[which] = self.pending[which] or 0
        self.open[which], self.pending[which] = {}, None

    def replace(self, which: int) -> None:
        """A successor comes; what its predecessor had begun is aborted."""
        former = self.producers[which]
        self.late += [("end", former.held_end(committed=chosen)) for chosen in (True, False)]
        self.late.append(("produce", former.held(self.chance.choice(self.places), self.fresh())))
        self.producers[which] = begun(self.wire, former.name)
        self.open[which], self.pending[which] = {}, None

    def deliver_late(self, which: int) -> None:
        if not self.late:
            return
        kind, held = self.chance.choice(self.late[-40:])
        if kind == "produce":
            # A copy of what is in the log, of a transaction that is still open, is told so; all else is refused.
            self.wire.ask(apis.PRODUCE, Protocol.NEW.produce, held)
        elif (held.producer_id, held.producer_epoch) not in [(each.id, each.epoch) for each in self.producers]:
            self.wire.ask(apis.END_TXN, Protocol.NEW.end, held)

    def crash(self) -> None:
        self.wire.socket.close()
        self.broker.kill()
        self.broker.start()
        self.wire = Wire(self.broker.address)
        for producer in self.producers:
            producer.wire = self.wire

    def check(self) -> None:
        """Behind the begin of an open transaction nothing is seen, committed or not."""
        for place in self.places:
            found = all_committed(self.wire, place)
            assert len(set(found)) == len(found)
            assert set(found) <= set(self.expected[place])
        for which in range(PRODUCERS):
            assert committed_offset(self.wire, f"g{which}", self.places[0])[1] == self.offsets[which]

    def finish(self) -> None:
        for which in range(PRODUCERS):
            self.end(which, commits=False)
        self.check()
        for place in self.places:
            assert sorted(all_committed(self.wire, place)) == sorted(self.expected[place])
            assert last_offset(self.wire, place, READ_COMMITTED) == last_offset(self.wire, place, 0)
        self.wire.socket.close()

    def fresh(self) -> bytes:
        self.number += 1
        return b"%d" % self.number


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_only_what_was_committed_is_seen(new_broker: BrokerFactory, seed: int) -> None:
    chance = random.Random(seed)
    model = Model(new_broker({"log.checkpoint_ms": 200}), chance)
    crash_at = chance.randrange(STEPS)
    for number in range(STEPS):
        model.step()
        if number == crash_at:
            model.crash()
        if number % 50 == 0:
            model.check()
    model.finish()
    assert sum(map(len, model.expected.values())) > 10
