"""A shard of groups without a broker, told what happens in words.

    settings initial_rebalance_delay_ms=0       before anything else
    5ms: a joins protocols=range:orders;roundrobin:orders session=10s rebalance=60s instance=i1
    5ms: a joins id=a-1                         clients remember their id and generation unless told otherwise
    6ms: a syncs a=0,1 b=2                      the leader's plan, by the names of the clients
    7ms: a beats / leaves / commits orders/0=5
    8ms: nobody commits orders/0=5              somebody outside the group
    9ms: a and b leave / i1 is removed / everybody waits
    9ms: the log fails / works                  from here on appends
    9ms: the broker restarts                    what was written is read by a new shard
    9ms: the group is deleted / offsets expire / orders is deleted / offsets of orders/0 are deleted
    9ms: orders is paused / everything is paused / nothing is paused        for the group
    9ms: the group is reset to orders/0=5       by an administrator, whether it runs or not

In the new protocol, where a client names itself and knows its epoch and what it was given last:

    0ms: orders has 4 partitions                from here on
    5ms: a enters topics=orders pattern=or.* rebalance=30s instance=i1 assignor=range       v0: the broker gives the id
    6ms: a pulses                               a heartbeat that says nothing new
    6ms: a pulses owned=orders/0,1 epoch=2 topics=bills
    6ms: a agrees                               it has let go of what it was not given again, and says so
    7ms: a goes / goes for now                  leaves for good, or as a static member that will be back
    8ms: a looks up offsets                     as the member that it is

Between two events the clock stops wherever something is due, as it does in a broker. What happens then is written with
its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import ApiError, Code
from penstock.groups import group_types
from penstock.groups.classic.group import ClassicGroup, GroupState
from penstock.groups.commits import Commit
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import ConsumerRecord
from penstock.groups.events import Joined, Leaver, Outcome, Synced
from penstock.groups.offsets import Committed
from penstock.groups.pause import NOT_PAUSED, Pause
from penstock.groups.records import encode
from penstock.groups.rules import GroupRules, OffsetRules
from penstock.groups.shard import Record, Shard
from penstock.ids import TopicPartition
from penstock.replication.state_log import StateRecord
from support import classic_words, consumer_words
from support.consumer_words import Topics
from support.group_client import Client
from support.shards import replayed
from support.words import event, ms, options, place

GROUP = "g"

_SYNC_WORDS: tuple[str, ...] = ("id", "generation", "protocol", "type")
_COMMIT_WORDS: tuple[str, ...] = ("generation", "metadata", "retention", "group")


class Story:
    """Time, clients, one shard and its log."""

    def __init__(self) -> None:
        self._now_ms = 0
        self._clients: dict[str, Client] = {}
        self._ids_given = 0
        self._group_rules = GroupRules(
            min_session_timeout_ms=1_000,
            max_session_timeout_ms=60_000,
            initial_rebalance_delay_ms=500,
            max_members=10,
            max_bytes=10_000,
            new_member_id=self._new_member_id,
        )
        self._offset_rules = OffsetRules(max_metadata_bytes=20, retention_ms=100_000, max_offsets=3, max_groups=4)
        self._topics = Topics()
        self._shard = self._new_shard()
        self._log: list[StateRecord] = []
        self._log_fails = False
        self._pause = NOT_PAUSED
        self._said: list[str] = []
        self._state = self._describe()

    def happens(self, line: str) -> list[str]:
        """What comes of an event, line by line."""
        self._said = []
        if line.startswith("settings "):
            self._set(options(line.split()[1:]))
            return self._said
        when_ms, what = event(line, self._now_ms)
        self._pass_time(when_ms)
        self._carry_out_event(what)
        self._say_state("")
        return self._said

    def check_that_a_restart_would_find_the_same(self) -> None:
        """What is durable in the shard is what another one would read from the log."""
        group = self._shard.groups.get(GROUP)
        # A group that has not come together since the pause changed begins to after a restart.
        after = self._replayed(group.generation.withheld if isinstance(group, ClassicGroup) else self._pause)
        assert after.offsets.committed == self._shard.offsets.committed
        for group_id, group in self._shard.groups.items():
            found = after.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                assert isinstance(found, ConsumerGroup)
                assert consumer_words.durable(found.state) == consumer_words.durable(group.state)
            elif group.state in (GroupState.STABLE, GroupState.EMPTY) and group.is_durable:
                assert isinstance(found, ClassicGroup)
                assert classic_words.durable(found) == classic_words.durable(group)
        for group_id, found in after.groups.items():
            known = self._shard.groups[group_id]
            if isinstance(found, ClassicGroup) and isinstance(known, ClassicGroup):
                assert found.generation.number <= known.generation.number

    def _carry_out_event(self, words: str) -> None:
        match words.split():
            case ["everybody", "waits"]:
                pass
            case ["the", "log", how] if how in ("fails", "works"):
                self._log_fails = how == "fails"
            case ["the", "broker", "restarts"]:
                self._shard = self._replayed(self._pause)
            case ["the", "group", "is", "reset", "to", *places]:
                self._reset(places)
            case ["the", "group", "is", "deleted"]:
                code, outcome = self._shard.delete_group(GROUP)
                self._say(f"group: {code.name}")
                self._carry_out(outcome, "")
            case ["offsets", "expire"]:
                self._carry_out(self._shard.expire(self._now_ms), "")
            case ["offsets", "of", where, "are", "deleted"]:
                code, codes, outcome = self._shard.delete_offsets(GROUP, [place(where)])
                self._say(*(f"{at.topic}/{at.partition}: {found.name}" for at, found in codes.items()))
                if not codes:
                    self._say(f"group: {code.name}")
                self._carry_out(outcome, "")
            case [topic, "has", count, "partitions" | "partition"]:
                self._set_partitions(topic, int(count))
            case [topic, "is", "paused"]:
                self._pause = {"nothing": NOT_PAUSED, "everything": Pause(is_all=True)}.get(
                    topic, Pause(topics=frozenset(topic.split(",")))
                )
                self._carry_out(self._shard.pause(GROUP, self._pause, self._now_ms), "")
            case [topic, "is", "deleted"]:
                self._set_partitions(topic, 0)
                self._carry_out(self._shard.forget_partitions(lambda at: at.topic == topic), "")
            case [instance_id, "is", "removed"]:
                self._leave([Leaver("", instance_id)], [instance_id])
            case [*names, "leave"]:
                clients = [self._client(name) for name in names if name != "and"]
                self._leave([client.leaver for client in clients], names[::2])
            case ["nobody", "commits", *rest]:
                self._commit(Client("nobody"), rest)
            case [name, verb, *rest] if verb in _VERBS:
                _VERBS[verb](self, self._client(name), rest)
            case _:
                raise AssertionError(f"nothing is known of: {words}")

    def _join(self, client: Client, rest: list[str]) -> None:
        wish = client.join(rest)
        self._carry_out(self._shard.join(client.group(GROUP), wish, self._now_ms), "")

    def _sync(self, client: Client, rest: list[str]) -> None:
        plans = options(rest)
        told = {name: plans.pop(name) for name in _SYNC_WORDS if name in plans}
        wish = client.sync(told, [(self._client(name).member_id, text) for name, text in plans.items()])
        self._carry_out(self._shard.sync(GROUP, wish, self._now_ms), "")

    def _beat(self, client: Client, rest: list[str]) -> None:
        self._say(f"{client.name}: {self._shard.heartbeat(GROUP, client.beat(rest), self._now_ms).name}")

    def _leave_alone(self, client: Client, rest: list[str]) -> None:
        self._leave([client.leaver], [client.name])

    def _set_partitions(self, topic: str, count: int) -> None:
        self._topics.set(topic, count)
        self._shard.image = self._topics.image

    def _enter(self, client: Client, rest: list[str]) -> None:
        self._pulse(client, client.enter(rest))

    def _agree(self, client: Client, rest: list[str]) -> None:
        self._pulse(client, [*rest, f"owned={self._topics.spell(client.given) if client.given else ''}"])

    def _go(self, client: Client, rest: list[str]) -> None:
        self._pulse(client, ["epoch=-2" if rest == ["for", "now"] else "epoch=-1"])

    def _pulse(self, client: Client, rest: list[str]) -> None:
        told = options(rest)
        wish = client.pulse(told, self._topics)
        try:
            answer, outcome = self._shard.consumer_heartbeat(told.get("group", GROUP), wish, self._now_ms)
        except ApiError as refusal:
            self._say(f"{client.name}: {refusal.code.name}")
            return
        if not self._carry_out(outcome, ""):
            self._say(f"{client.name}: COORDINATOR_NOT_AVAILABLE")
            return
        client.member_id = answer.member_id
        client.epoch = client.generation = answer.epoch
        is_known = "" if answer.member_id == client.name else f" as {answer.member_id}"
        if answer.assignment is None:
            self._say(f"{client.name}: epoch {answer.epoch}{is_known}")
        else:
            client.given = answer.assignment
            self._say(f"{client.name}: epoch {answer.epoch}{is_known}, reads {self._topics.spell(client.given)}")

    def _look_up(self, client: Client, rest: list[str]) -> None:
        group = self._shard.groups.get(GROUP)
        assert isinstance(group, ConsumerGroup)
        epoch = int(options([word for word in rest if "=" in word]).get("epoch", client.epoch))
        self._say(f"{client.name}: {(group.check(client.member_id, epoch) or Code.NONE).name}")

    def _leave(self, leavers: list[Leaver], names: list[str]) -> None:
        codes, outcome = self._shard.leave(GROUP, tuple(leavers), self._now_ms)
        self._say(*(f"{name}: left {code.name}" for name, code in zip(names, codes, strict=True)))
        self._carry_out(outcome, "")

    def _commit(self, client: Client, rest: list[str]) -> None:
        places = options(rest)
        told = {name: places.pop(name) for name in _COMMIT_WORDS if name in places}
        expire_ms = self._now_ms + ms(told["retention"]) if "retention" in told else -1
        offsets = {
            place(where): Committed(int(offset), -1, told.get("metadata", ""), self._now_ms, expire_ms)
            for where, offset in places.items()
        }
        member = client.member_epoch(told)
        result = self._shard.commit(told.get("group", GROUP), member, offsets, self._now_ms)
        self._say_codes(client.name, *result)

    def _reset(self, places: list[str]) -> None:
        offsets = {
            place(where): Committed(int(offset), -1, "", self._now_ms) for where, offset in options(places).items()
        }
        result = self._shard.reset(GROUP, offsets, self._now_ms)
        self._say_codes("reset", *result)

    def _say_codes(
        self, who: str, refusal: Code | None, codes: Mapping[TopicPartition, Code], outcome: Outcome
    ) -> None:
        if not self._carry_out(outcome, ""):
            refusal, codes = Code.COORDINATOR_NOT_AVAILABLE, {}
        if refusal is not None:
            self._say(f"{who}: {refusal.name}")
        self._say(*(f"{who}: {at.topic}/{at.partition} {code.name}" for at, code in codes.items()))

    def _pass_time(self, until_ms: int) -> None:
        assert until_ms >= self._now_ms, "time does not go back"
        while True:
            due = [due_ms for group in self._shard.groups.values() if (due_ms := group_types.due_ms(group)) is not None]
            if min(due, default=until_ms) > until_ms or not due:
                break
            self._now_ms = max(self._now_ms, min(due))
            when = f"{self._now_ms}ms "
            outcomes = self._shard.tick(self._now_ms)
            for outcome in outcomes.values():
                self._carry_out(outcome, when)
            self._say_state(when)
            if not outcomes:
                break
        self._now_ms = until_ms

    def _carry_out(self, outcome: Outcome, when: str) -> bool:
        """What the coordinator does with an outcome; whether it could be written."""
        if outcome.records and self._log_fails:
            self._say(f"{when}log: failed")
            failure = Code.COORDINATOR_NOT_AVAILABLE
            self._answer([(token, type(answer)(code=failure)) for token, answer in outcome.replies], when)
            self._answer(self._shard.not_written(outcome.records, self._now_ms).replies, when)
            return False
        for record in outcome.records:
            self._log.append(encode(record))
            self._shard.apply(record, self._now_ms)
            self._say(f"{when}log: {self._written(record)}")
        self._answer(outcome.replies, when)
        return True

    def _answer(self, replies: list[tuple[Any, Joined | Synced]], when: str) -> None:
        for (name, _, _), answer in replies:
            self._say(f"{when}{name}: {self._client(name).is_told(answer)}")

    def _replayed(self, pause: Pause) -> Shard:
        shard = self._new_shard()
        shard.pause(GROUP, pause, self._now_ms)
        return replayed(shard, self._log, self._now_ms)

    def _describe(self) -> str:
        group = self._shard.groups.get(GROUP)
        if group is None:
            return "none"
        if isinstance(group, ConsumerGroup):
            return f"{group.state.state.value}, epoch {group.state.epoch}, members {' '.join(group.members) or 'none'}"
        return f"{group.state.value}, generation {group.generation.number}, members {' '.join(group.members) or 'none'}"

    def _say_state(self, when: str) -> None:
        state = self._describe()
        if state != self._state:
            self._state = state
            self._say(f"{when}group: {state}")

    def _say(self, *lines: str) -> None:
        self._said += lines

    def _client(self, name: str) -> Client:
        return self._clients.setdefault(name, Client(name))

    def _new_member_id(self, name: str) -> str:
        self._ids_given += 1
        return f"{name}-{self._ids_given}"

    def _set(self, rules: dict[str, str]) -> None:
        for name, value in rules.items():
            changed: dict[str, Any] = {name: tuple(value.split(",")) if name == "consumer_assignors" else int(value)}
            if hasattr(self._group_rules, name):
                self._group_rules = replace(self._group_rules, **changed)
            else:
                self._offset_rules = replace(self._offset_rules, **changed)
        self._shard = self._new_shard()

    def _new_shard(self) -> Shard:
        return Shard(self._group_rules, self._offset_rules, self._topics.image)

    def _written(self, record: Record) -> str:
        if isinstance(record, ConsumerRecord):
            return self._topics.written(record)
        assert not isinstance(record, Commit)  # stories commit by name
        return classic_words.written(record)


_VERBS: dict[str, Callable[[Story, Client, list[str]], None]] = {
    "joins": Story._join,
    "syncs": Story._sync,
    "beats": Story._beat,
    "leaves": Story._leave_alone,
    "commits": Story._commit,
    "enters": Story._enter,
    "pulses": Story._pulse,
    "agrees": Story._agree,
    "goes": Story._go,
    "looks": Story._look_up,
}
