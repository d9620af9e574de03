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

Between two events the clock stops wherever something is due, as it does in a broker. What happens then is written with
its time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.errors import Code
from penstock.groups.classic import GroupState
from penstock.groups.events import Heartbeat, Join, Joined, Leaver, Outcome, Sync, Synced
from penstock.groups.generation import GroupRecord
from penstock.groups.members import Protocol
from penstock.groups.offsets import Committed, GroupTombstone, OffsetRecord
from penstock.groups.records import decode, encode
from penstock.groups.rules import GroupRules, OffsetRules
from penstock.groups.shard import Record, Shard
from penstock.groups.subscription import topics_of
from penstock.ids import TopicPartition
from penstock.protocol.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    SUBSCRIPTION,
    ConsumerProtocolSubscription,
)
from penstock.replication.statelog import StateRecord

GROUP = "g"
_EVENT = re.compile(r"(?:(\d+)ms: )?(.+)")


class Client:
    """One client: what it knows of its membership."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.instance_id: str | None = None
        self.options: dict[str, str] = {}
        """What it last joined with."""


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
        self._shard = Shard(self._group_rules, self._offset_rules)
        self._log: list[StateRecord] = []
        self._log_fails = False
        self._said: list[str] = []
        self._state = self._describe()

    def happens(self, line: str) -> list[str]:
        """What comes of an event, line by line."""
        self._said = []
        if line.startswith("settings "):
            self._set(_options(line.split()[1:]))
            return self._said
        found = _EVENT.fullmatch(line)
        assert found is not None
        self._pass_time(int(found[1] or self._now_ms))
        self._carry_out_event(found[2])
        self._say_state("")
        return self._said

    def check_that_a_restart_would_find_the_same(self) -> None:
        """What is durable in the shard is what another one would read from the log."""
        after = self._replayed()
        assert after.offsets == self._shard.offsets
        for group_id, group in self._shard.groups.items():
            if group.state in (GroupState.STABLE, GroupState.EMPTY) and group.is_durable:
                assert _durable(after, group_id) == _durable(self._shard, group_id)
        for group_id, found in after.groups.items():
            assert found.generation.number <= self._shard.groups[group_id].generation.number

    def _carry_out_event(self, words: str) -> None:
        match words.split():
            case ["everybody", "waits"]:
                pass
            case ["the", "log", how] if how in ("fails", "works"):
                self._log_fails = how == "fails"
            case ["the", "broker", "restarts"]:
                self._shard = self._replayed()
            case ["the", "group", "is", "deleted"]:
                code, outcome = self._shard.delete_group(GROUP)
                self._say(f"group: {code.name}")
                self._carry_out(outcome, "")
            case ["offsets", "expire"]:
                self._carry_out(self._shard.expire(self._now_ms), "")
            case ["offsets", "of", place, "are", "deleted"]:
                code, codes, outcome = self._shard.delete_offsets(GROUP, [_place(place)])
                self._say(*(f"{at.topic}/{at.partition}: {found.name}" for at, found in codes.items()))
                if not codes:
                    self._say(f"group: {code.name}")
                self._carry_out(outcome, "")
            case [topic, "is", "deleted"]:
                self._carry_out(self._shard.forget_topics(topic.__eq__), "")
            case [instance_id, "is", "removed"]:
                self._leave([Leaver("", instance_id)], [instance_id])
            case [*names, "leave"]:
                clients = [self._client(name) for name in names if name != "and"]
                self._leave([Leaver(client.member_id, client.instance_id) for client in clients], names[::2])
            case ["nobody", "commits", *rest]:
                self._commit(Client("nobody"), rest)
            case [name, verb, *rest] if verb in _VERBS:
                _VERBS[verb](self, self._client(name), rest)
            case _:
                raise AssertionError(f"nothing is known of: {words}")

    def _join(self, client: Client, rest: list[str]) -> None:
        flags = [word for word in rest if "=" not in word]
        options = client.options | _options([word for word in rest if "=" in word])
        if "anew" in flags:
            client.member_id = ""
        client.options = {name: value for name, value in options.items() if name != "id"}
        client.instance_id = options.get("instance")
        kind = options.get("type", PROTOCOL_TYPE)
        offered = options.get("protocols", "range:orders")
        group_id = options.get("group", GROUP)
        event = Join(
            token=(client.name, "join", object()),
            member_id=options.get("id", client.member_id),
            instance_id=client.instance_id,
            client_id=client.name,
            client_host="/127.0.0.1",
            session_timeout_ms=_ms(options.get("session", "10s")),
            rebalance_timeout_ms=_ms(options.get("rebalance", "30s")),
            protocol_type=kind,
            protocols=tuple(_protocol(each, kind) for each in offered.split(";") if each),
            must_know_its_id="v3" not in flags,
            can_skip_assignment="v3" not in flags and "v8" not in flags,
        )
        self._carry_out(self._shard.join(group_id, event, self._now_ms), "")

    def _sync(self, client: Client, rest: list[str]) -> None:
        options = _options(rest)
        told = {name: options.pop(name) for name in ("id", "generation", "protocol", "type") if name in options}
        event = Sync(
            token=(client.name, "sync", object()),
            member_id=told.get("id", client.member_id),
            instance_id=client.instance_id,
            generation=int(told.get("generation", client.generation)),
            protocol_type=told.get("type"),
            protocol=told.get("protocol"),
            assignments=tuple((self._client(name).member_id, plan.encode()) for name, plan in options.items()),
        )
        self._carry_out(self._shard.sync(GROUP, event, self._now_ms), "")

    def _beat(self, client: Client, rest: list[str]) -> None:
        told = _options(rest)
        event = Heartbeat(
            member_id=told.get("id", client.member_id),
            instance_id=client.instance_id,
            generation=int(told.get("generation", client.generation)),
        )
        self._say(f"{client.name}: {self._shard.heartbeat(GROUP, event, self._now_ms).name}")

    def _leave_alone(self, client: Client, rest: list[str]) -> None:
        self._leave([Leaver(client.member_id, client.instance_id)], [client.name])

    def _leave(self, leavers: list[Leaver], names: list[str]) -> None:
        codes, outcome = self._shard.leave(GROUP, tuple(leavers), self._now_ms)
        self._say(*(f"{name}: left {code.name}" for name, code in zip(names, codes, strict=True)))
        self._carry_out(outcome, "")

    def _commit(self, client: Client, rest: list[str]) -> None:
        options = _options(rest)
        told = {name: options.pop(name) for name in ("generation", "metadata", "retention", "group") if name in options}
        member = (client.member_id, client.instance_id, int(told.get("generation", client.generation)))
        expire_ms = self._now_ms + _ms(told["retention"]) if "retention" in told else -1
        offsets = {
            _place(place): Committed(int(offset), -1, told.get("metadata", ""), self._now_ms, expire_ms)
            for place, offset in options.items()
        }
        group_id = told.get("group", GROUP)
        refusal, codes, outcome = self._shard.commit(group_id, member, offsets, self._now_ms)
        if not self._carry_out(outcome, ""):
            refusal, codes = Code.COORDINATOR_NOT_AVAILABLE, {}
        if refusal is not None:
            self._say(f"{client.name}: {refusal.name}")
        for at, code in codes.items():
            self._say(f"{client.name}: {at.topic}/{at.partition} {code.name}")

    def _pass_time(self, until_ms: int) -> None:
        assert until_ms >= self._now_ms, "time does not go back"
        while True:
            due = [group.due_ms for group in self._shard.groups.values() if group.due_ms is not None]
            if min(due, default=until_ms) > until_ms or not due:
                break
            self._now_ms = max(self._now_ms, min(due))
            when = f"{self._now_ms}ms "
            outcomes = self._shard.tick(self._now_ms)
            for outcome in outcomes:
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
            self._say(f"{when}log: {_written(record)}")
        self._answer(outcome.replies, when)
        return True

    def _answer(self, replies: list[tuple[Any, Joined | Synced]], when: str) -> None:
        for (name, _, _), answer in replies:
            client = self._client(name)
            self._say(f"{when}{name}: {self._told(client, answer)}")

    def _told(self, client: Client, answer: Joined | Synced) -> str:
        """The answer in words; the client remembers what it is told."""
        if isinstance(answer, Synced):
            return answer.code.name if answer.code else f"assigned {answer.assignment.decode() or 'nothing'}"
        if answer.code is Code.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
            return f"{answer.code.name} {answer.member_id}"
        if answer.code is not Code.NONE:
            if answer.code is Code.UNKNOWN_MEMBER_ID:
                client.member_id = ""
            return answer.code.name
        client.member_id, client.generation = answer.member_id, answer.generation
        known = " ".join(
            f"{member_id}{f'[{instance_id}]' if instance_id else ''}({_wants(metadata)})"
            for member_id, instance_id, metadata in answer.members
        )
        role = f"leads {known}" if answer.members else f"follows {answer.leader}"
        keeps = ", keeps the plan" if answer.skip_assignment else ""
        return f"joined as {answer.member_id}, generation {answer.generation}, {answer.protocol}, {role}{keeps}"

    def _replayed(self) -> Shard:
        shard = Shard(self._group_rules, self._offset_rules)
        for written in self._log:
            record = decode(written)
            assert record is not None
            shard.apply(record, self._now_ms)
        shard.loaded(self._now_ms)
        return shard

    def _describe(self) -> str:
        group = self._shard.groups.get(GROUP)
        if group is None:
            return "none"
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

    def _set(self, options: dict[str, str]) -> None:
        for name, value in options.items():
            if hasattr(self._group_rules, name):
                self._group_rules = replace(self._group_rules, **{name: int(value)})
            else:
                self._offset_rules = replace(self._offset_rules, **{name: int(value)})
        self._shard = Shard(self._group_rules, self._offset_rules)


_VERBS: dict[str, Callable[[Story, Client, list[str]], None]] = {
    "joins": Story._join,
    "syncs": Story._sync,
    "beats": Story._beat,
    "leaves": Story._leave_alone,
    "commits": Story._commit,
}


def _options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)  # type: ignore[arg-type, misc]


def _ms(text: str) -> int:
    return int(text[:-1]) * 1000 if text.endswith("s") and not text.endswith("ms") else int(text.removesuffix("ms"))


def _place(text: str) -> TopicPartition:
    topic, _, partition = text.partition("/")
    return TopicPartition(topic, int(partition))


def _protocol(text: str, kind: str) -> Protocol:
    """`range:orders,bills`, with `+p` for partitions that the member says it owns."""
    name, _, wanted = text.partition(":")
    if kind != PROTOCOL_TYPE:
        return Protocol(name, wanted.encode())
    topics, _, owned = wanted.partition("+")
    subscription = ConsumerProtocolSubscription(topics=tuple(topics.split(",")), user_data=owned.encode() or None)
    return Protocol(name, SUBSCRIPTION.encode(subscription))


def _wants(metadata: bytes) -> str:
    topics = topics_of(metadata)
    return metadata.decode() if topics is None else ",".join(sorted(topics))


def _written(record: Record) -> str:
    if isinstance(record, GroupTombstone):
        return f"group {record.group_id} is gone"
    if isinstance(record, OffsetRecord):
        place = f"{record.group_id} {record.at.topic}/{record.at.partition}"
        return f"{place} is gone" if record.committed is None else f"{place} = {record.committed.offset}"
    assert isinstance(record, GroupRecord)
    members = " ".join(f"{member.member_id}={member.assignment.decode()}" for member in record.members)
    led = f"{record.protocol}, led by {record.leader}: {members}" if record.members else "empty"
    return f"group {record.group_id} generation {record.generation}, {led}"


def _durable(shard: Shard, group_id: str) -> tuple[Any, ...]:
    group = shard.groups[group_id]
    protocol = group.generation.protocol or ""
    members = [
        (
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            member.metadata_of(protocol),
            member.assignment,
        )
        for member in group.members.values()
    ]
    return group.state, group.generation, group.changed_ms, members
