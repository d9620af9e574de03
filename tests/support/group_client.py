"""One client of a story of groups: what it knows of its membership, and what it asks for in words."""

from __future__ import annotations

from penstock.errors import Code
from penstock.groups.consumer.assignment import NOTHING
from penstock.groups.consumer.events import ConsumerHeartbeat
from penstock.groups.events import Heartbeat, Join, Joined, Leaver, MemberEpoch, Sync, Synced
from penstock.protocol.messages.consumer_protocol import PROTOCOL_TYPE
from support import classic_words
from support.consumer_words import Topics, plan, spelled_plan
from support.words import ms, options

HOST = "/127.0.0.1"


class Client:
    """What is not told anew is what it was told last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.instance_id: str | None = None
        self.epoch = 0
        self.given = NOTHING
        """In the new protocol."""
        self._options: dict[str, str] = {}
        """What it last joined with."""
        self._names_itself = True

    @property
    def leaver(self) -> Leaver:
        return Leaver(self.member_id, self.instance_id)

    def join(self, rest: list[str]) -> Join:
        flags = [word for word in rest if "=" not in word]
        told = self._options | options([word for word in rest if "=" in word])
        if "anew" in flags:
            self.member_id = ""
        self._options = {name: value for name, value in told.items() if name != "id"}
        self.instance_id = told.get("instance")
        kind = told.get("type", PROTOCOL_TYPE)
        offered = told.get("protocols", "range:orders")
        return Join(
            token=(self.name, "join", object()),
            member_id=told.get("id", self.member_id),
            instance_id=self.instance_id,
            client_id=self.name,
            client_host=HOST,
            session_timeout_ms=ms(told.get("session", "10s")),
            rebalance_timeout_ms=ms(told.get("rebalance", "30s")),
            protocol_type=kind,
            protocols=tuple(classic_words.protocol(each, kind) for each in offered.split(";") if each),
            must_know_its_id="v3" not in flags,
            can_skip_assignment="v3" not in flags and "v8" not in flags,
        )

    def group(self, default: str) -> str:
        """The group that it joins."""
        return self._options.get("group", default)

    def sync(self, told: dict[str, str], plans: list[tuple[str, str]]) -> Sync:
        """As the leader it has a plan for each member id."""
        return Sync(
            token=(self.name, "sync", object()),
            member_id=told.get("id", self.member_id),
            instance_id=self.instance_id,
            generation=int(told.get("generation", self.generation)),
            protocol_type=told.get("type"),
            protocol=told.get("protocol"),
            assignments=tuple((member_id, plan(text)) for member_id, text in plans),
        )

    def beat(self, rest: list[str]) -> Heartbeat:
        told = options(rest)
        return Heartbeat(
            member_id=told.get("id", self.member_id),
            instance_id=self.instance_id,
            generation=int(told.get("generation", self.generation)),
        )

    def member_epoch(self, told: dict[str, str]) -> MemberEpoch:
        """Who it says that it is when it commits."""
        return MemberEpoch(self.member_id, self.instance_id, int(told.get("generation", self.generation)))

    def enter(self, rest: list[str]) -> list[str]:
        """The words of its first heartbeat in the new protocol."""
        flags = [word for word in rest if "=" not in word]
        told = options([word for word in rest if "=" in word])
        self.instance_id = told.get("instance")
        self.member_id = told.pop("id", "" if "v0" in flags else self.name)
        self.epoch = 0
        self._names_itself = "v0" not in flags
        wanted = {"topics": "orders"} if "pattern" not in told else {}
        return [f"{key}={value}" for key, value in ({"owned": "", "rebalance": "30s"} | wanted | told).items()]

    def pulse(self, told: dict[str, str], known: Topics) -> ConsumerHeartbeat:
        topics = told.get("topics")
        return ConsumerHeartbeat(
            member_id=told.get("id", self.member_id),
            epoch=int(told.get("epoch", self.epoch)),
            client_id=self.name,
            client_host=HOST,
            instance_id=told.get("instance", self.instance_id),
            rack_id=told.get("rack"),
            rebalance_timeout_ms=ms(told["rebalance"]) if "rebalance" in told else -1,
            topics=None if topics is None else tuple(topics.split(",")) if topics else (),
            pattern=told.get("pattern"),
            assignor=told.get("assignor"),
            owned=known.read(told["owned"]) if "owned" in told else None,
            must_bring_its_id=self._names_itself,
        )

    def is_told(self, answer: Joined | Synced) -> str:
        """The answer in words; the client remembers it."""
        if isinstance(answer, Synced):
            return answer.code.name if answer.code else f"assigned {spelled_plan(answer.assignment) or 'nothing'}"
        if answer.code is Code.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return f"{answer.code.name} {answer.member_id}"
        if answer.code is not Code.NONE:
            if answer.code is Code.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            return answer.code.name
        self.member_id, self.generation = answer.member_id, answer.generation
        return classic_words.joined(answer)
