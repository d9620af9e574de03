"""The transactional ids of a shard without a broker, told what happens in words.

    settings max_partitions=3 id_expiry_ms=1000   before anything else
    0ms: p inits timeout=60s                    a producer begins; all of them go by the id `t` unless told otherwise
    0ms: q inits id=u
    1ms: p bumps                                asks for its next epoch as who it is (KIP-360)
    1ms: p bumps as 7/0                         ... as producer 7 in epoch 0
    2ms: p adds orders/0 orders/1               before it writes: the protocol before KIP-890
    2ms: p writes orders/0                      writing adds: the protocol from KIP-890 on
    3ms: p verifies orders/0                    whether a batch belongs to its transaction
    4ms: p commits / aborts                     and goes on with the epoch that it is given
    4ms: p commits old                          before KIP-890
    5ms: p commits as 1/0                       late, or again: nobody waits for the answer
    6ms: markers are written
    7ms: 32766 is the epoch of t                so many epochs later
    8ms: ids expire / the log fails / the log works / the broker restarts / everybody waits

Between two events the clock stops wherever the time of a transaction is over, as it does in a broker. What happens then
is written with its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.errors import Code
from penstock.replication.state_log import StateRecord
from penstock.transactions import state_machine
from penstock.transactions.records import by_topic, decode, encode
from penstock.transactions.shard import TransactionRules, TransactionShard
from penstock.transactions.state import NO_EPOCH, Status, TransactionRecord, TransactionState
from penstock.transactions.state_machine import BUMPING_VERSION, NO_PRODUCER, Decision, Producer
from support.words import event, ms, options, place

_OLD = 0

Decide = Callable[[TransactionState | None, int | None], Decision]


@dataclass(slots=True)
class Client:
    """One producer: what it knows of itself."""

    name: str
    id: str = "t"
    me: Producer = NO_PRODUCER


class Story:
    """Time, producers, one shard and its log."""

    def __init__(self) -> None:
        self._now_ms = 0
        self._clients: dict[str, Client] = {}
        self._ids_given = 0
        self._rules = TransactionRules(max_timeout_ms=900_000, id_expiry_ms=100_000, max_ids=3, max_partitions=3)
        self._shard = TransactionShard(self._rules)
        self._log: list[StateRecord] = []
        self._log_fails = False
        self._said: list[str] = []

    def happens(self, line: str) -> list[str]:
        """What comes of an event, line by line."""
        self._said = []
        if line.startswith("settings "):
            changed = {name: int(value) for name, value in options(line.split()[1:]).items()}
            self._rules = replace(self._rules, **changed)
            self._shard = TransactionShard(self._rules)
            return self._said
        when_ms, what = event(line, self._now_ms)
        self._pass_time(when_ms)
        self._carry_out_event(what)
        return self._said

    def check_that_a_restart_would_find_the_same(self) -> None:
        """All but what is said to be soft is what another shard would read from the log."""
        after = self._replayed()
        assert after.states == {name: replace(state, last_epoch=NO_EPOCH) for name, state in self._shard.states.items()}
        assert set(after.undone()) == set(self._shard.undone())

    def _carry_out_event(self, words: str) -> None:
        match words.split():
            case ["everybody", "waits"]:
                pass
            case ["the", "log", how] if how in ("fails", "works"):
                self._log_fails = how == "fails"
            case ["the", "broker", "restarts"]:
                self._shard = self._replayed()
                self._say(*(f"to complete: {name}" for name in self._shard.undone()))
            case ["markers", "are", "written"]:
                for name in self._shard.undone():
                    state = self._shard.states[name]
                    self._say(f"markers: {_marker(state)}")
                    self._write([TransactionRecord(name, state_machine.completed(state, self._now_ms))], "")
            case ["ids", "expire"]:
                self._write(list(self._shard.expired(self._now_ms)), "")
            case [epoch, "is", "the", "epoch", "of", name]:
                state = replace(self._shard.states[name], producer_epoch=int(epoch))
                self._write([TransactionRecord(name, state)], "")
                for client in self._clients.values():
                    if client.id == name:
                        client.me = client.me._replace(epoch=int(epoch))
            case [name, verb, *rest] if verb in _VERBS:
                _VERBS[verb](self, self._clients.setdefault(name, Client(name)), rest)
            case _:
                raise AssertionError(f"nothing is known of: {words}")

    def _init(self, client: Client, rest: list[str]) -> None:
        told = options(rest)
        client.id = told.get("id", client.id)
        self._begin(client, NO_PRODUCER, ms(told.get("timeout", "60s")))

    def _bump(self, client: Client, rest: list[str]) -> None:
        self._begin(client, _producer(rest[1]) if rest else client.me, 60_000)

    def _begin(self, client: Client, expected: Producer, timeout_ms: int) -> None:
        if not self._shard.has_room_for(client.id):
            self._say(f"{client.name}: there is no room for another id")
            return
        decision = self._decide(
            client, lambda state, fresh: state_machine.init(state, expected, timeout_ms, fresh, self._now_ms)
        )
        if decision is not None and decision.code is Code.NONE:
            client.me = decision.producer
            self._say(f"{client.name}: is {_who(client.me)}")

    def _add(self, client: Client, rest: list[str]) -> None:
        self._add_in(_OLD, client, rest)

    def _write_to(self, client: Client, rest: list[str]) -> None:
        self._add_in(BUMPING_VERSION, client, rest)

    def _add_in(self, version: int, client: Client, rest: list[str]) -> None:
        places = [place(word) for word in rest]
        limit = self._rules.max_partitions
        decision = self._decide(
            client,
            lambda state, _: state_machine.add_partitions(state, client.me, places, limit, version, self._now_ms),
        )
        if decision is not None and decision.code is Code.NONE:
            self._say(f"{client.name}: may write")

    def _verify(self, client: Client, rest: list[str]) -> None:
        codes = state_machine.verify(self._shard.states.get(client.id), client.me, [place(word) for word in rest])
        self._say(*(f"{client.name}: {at.topic}/{at.partition} {code.name}" for at, code in codes.items()))

    def _commit(self, client: Client, rest: list[str]) -> None:
        self._end(client, rest, commits=True)

    def _abort(self, client: Client, rest: list[str]) -> None:
        self._end(client, rest, commits=False)

    def _end(self, client: Client, rest: list[str], *, commits: bool) -> None:
        version = _OLD if "old" in rest else BUMPING_VERSION
        is_late = "as" in rest
        producer = _producer(rest[rest.index("as") + 1]) if is_late else client.me
        decision = self._decide(
            client,
            lambda state, fresh: state_machine.end(state, producer, version, fresh, self._now_ms, commits=commits),
        )
        if decision is not None and decision.code is Code.NONE:
            if not is_late:
                client.me = decision.producer
            self._say(f"{client.name}: {_who(decision.producer)} goes on")

    def _decide(self, client: Client, decide: Decide) -> Decision | None:
        """What the coordinator does with a decision; None if it could not be written."""
        state = self._shard.states.get(client.id)
        decision = decide(state, None)
        if decision.wants_producer_id:
            self._ids_given += 1
            decision = decide(state, self._ids_given)
        if decision.state is not None and not self._write([TransactionRecord(client.id, decision.state)], ""):
            self._say(f"{client.name}: {Code.COORDINATOR_NOT_AVAILABLE.name}")
            return None
        if decision.code is not Code.NONE:
            self._say(f"{client.name}: {decision.code.name}")
        return decision

    def _pass_time(self, until_ms: int) -> None:
        assert until_ms >= self._now_ms, "time does not go back"
        while True:
            due = [state.ends_ms for state in self._shard.states.values() if state.status is Status.ONGOING]
            if min(due, default=until_ms + 1) > until_ms:
                break
            self._now_ms = max(self._now_ms, min(due))
            assert self._shard.is_due(self._now_ms)
            if not self._write(self._shard.overdue(self._now_ms), f"{self._now_ms}ms "):
                break
        self._now_ms = until_ms
        assert self._log_fails or not self._shard.is_due(self._now_ms)

    def _write(self, records: list[TransactionRecord], when: str) -> bool:
        """Appends and takes in."""
        if records and self._log_fails:
            self._say(f"{when}log: failed")
            return False
        for record in records:
            self._log.append(encode(record))
            self._shard.apply(record)
            self._say(f"{when}log: {_written(record)}")
        return True

    def _replayed(self) -> TransactionShard:
        shard = TransactionShard(self._rules)
        for written in self._log:
            record = decode(written)
            assert record is not None
            shard.apply(record)
        return shard

    def _say(self, *lines: str) -> None:
        self._said += lines


_VERBS: dict[str, Callable[[Story, Client, list[str]], None]] = {
    "inits": Story._init,
    "bumps": Story._bump,
    "adds": Story._add,
    "writes": Story._write_to,
    "verifies": Story._verify,
    "commits": Story._commit,
    "aborts": Story._abort,
}


def _producer(text: str) -> Producer:
    producer_id, _, epoch = text.partition("/")
    return Producer(int(producer_id), int(epoch))


def _who(producer: Producer) -> str:
    return f"producer {producer.id} in epoch {producer.epoch}"


def _marker(state: TransactionState) -> str:
    what = "commit" if state.status is Status.PREPARE_COMMIT else "abort"
    return f"{what} of {_who(Producer(state.producer_id, state.producer_epoch))} in {_partitions(state)}"


def _partitions(state: TransactionState) -> str:
    found = [f"{topic}/{index}" for topic, indexes in by_topic(state.partitions).items() for index in indexes]
    return " ".join(found) or "nothing"


def _written(record: TransactionRecord) -> str:
    name, state = record.transactional_id, record.state
    if state is None:
        return f"{name} is gone"
    written = f"{name} {state.status.shown}, {_who(Producer(state.producer_id, state.producer_epoch))}"
    if state.partitions:
        written += f", {_partitions(state)}"
    if state.previous_producer_id >= 0:
        written += f", was producer {state.previous_producer_id}"
    if state.next_producer_id >= 0:
        written += f", will be producer {state.next_producer_id}"
    return written
