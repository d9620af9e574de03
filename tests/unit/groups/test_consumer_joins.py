"""Members of a consumer group that join at the same time: one epoch, one plan, one batch, an answer for each."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import ApiError, Code
from penstock.groups.consumer.events import ConsumerHeartbeat, HeartbeatAnswer
from penstock.groups.consumer.records import CurrentRecord, EpochRecord, MemberRecord, TargetEpochRecord, TargetRecord
from penstock.groups.consumer_joins import ConsumerJoins, Take
from penstock.groups.events import Outcome
from penstock.groups.rules import GroupRules, OffsetRules
from penstock.groups.shard import Shard
from support.consumer_words import Topics

RULES = GroupRules(
    min_session_timeout_ms=1_000,
    max_session_timeout_ms=60_000,
    initial_rebalance_delay_ms=0,
    max_members=6,
    max_bytes=100_000,
    new_member_id=str,
)
OFFSETS = OffsetRules(max_metadata_bytes=10, retention_ms=50_000, max_offsets=3, max_groups=2)
PARTITIONS = 12


@pytest.fixture
def shard() -> Shard:
    topics = Topics()
    topics.set("t", PARTITIONS)
    return Shard(RULES, OFFSETS, topics.image)


def join(member_id: str, **said: Any) -> ConsumerHeartbeat:
    event = ConsumerHeartbeat(
        member_id=member_id,
        epoch=0,
        client_id="c",
        client_host="/",
        rebalance_timeout_ms=10_000,
        topics=("t",),
        owned=frozenset(),
    )
    return replace(event, **said)


def carry_out(shard: Shard, outcome: Outcome) -> list[type]:
    """The kinds of the records."""
    for record in outcome.records:
        shard.apply(record, 0)
    return [type(record) for record in outcome.records]


def taken(answers: list[HeartbeatAnswer | ApiError]) -> list[HeartbeatAnswer]:
    return [answer for answer in answers if isinstance(answer, HeartbeatAnswer)]


def code_of(answer: HeartbeatAnswer | ApiError) -> Code:
    return answer.code if isinstance(answer, ApiError) else Code.NONE


def test_all_have_their_part_of_one_plan_at_once(shard: Shard) -> None:
    answers, outcome = shard.consumer_joins("g", [join(f"m{number}") for number in range(4)], 0)
    assert [(answer.member_id, answer.epoch) for answer in taken(answers)] == [(f"m{number}", 1) for number in range(4)]
    shares = [answer.assignment or frozenset() for answer in taken(answers)]
    assert [len(share) for share in shares] == [3, 3, 3, 3]
    assert len(frozenset().union(*shares)) == PARTITIONS
    assert outcome.is_whole
    assert carry_out(shard, outcome) == [
        *[MemberRecord] * 4,
        EpochRecord,
        *[TargetRecord] * 4,
        TargetEpochRecord,
        *[CurrentRecord] * 4,
    ]


def test_who_comes_later_is_given_what_others_have_let_go_of(shard: Shard) -> None:
    _, outcome = shard.consumer_joins("g", [join("m0")], 0)
    carry_out(shard, outcome)
    answers, outcome = shard.consumer_joins("g", [join("m1"), join("m2")], 0)
    assert [answer.assignment for answer in taken(answers)] == [frozenset(), frozenset()]
    assert carry_out(shard, outcome).count(EpochRecord) == 1


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (join("x", topics=None), Code.INVALID_REQUEST),
        (join("x", assignor="none"), Code.UNSUPPORTED_ASSIGNOR),
        (join("x", pattern="("), Code.INVALID_REGULAR_EXPRESSION),
        (join("x", instance_id="here"), Code.UNRELEASED_INSTANCE_ID),
        (join("x", client_id="c" * 100_000), Code.GROUP_MAX_SIZE_REACHED),
    ],
)
def test_who_is_refused_keeps_nobody_out(shard: Shard, refused: ConsumerHeartbeat, code: Code) -> None:
    answers, outcome = shard.consumer_joins("g", [join("m0", instance_id="here"), refused, join("m1")], 0)
    assert [code_of(answer) for answer in answers] == [Code.NONE, code, Code.NONE]
    assert sum(len(answer.assignment or ()) for answer in taken(answers)) == PARTITIONS
    carry_out(shard, outcome)
    assert set(shard.groups["g"].members) == {"m0", "m1"}


def test_static_member_that_is_refused_does_not_replace_its_former_self(shard: Shard) -> None:
    _, outcome = shard.consumer_joins("g", [join("m0", instance_id="here")], 0)
    carry_out(shard, outcome)
    away = ConsumerHeartbeat(member_id="m0", epoch=-2, client_id="c", client_host="/", instance_id="here")
    carry_out(shard, shard.consumer_heartbeat("g", away, 0)[1])
    too_large = join("m1", instance_id="here", client_id="c" * 100_000)
    answers, outcome = shard.consumer_joins("g", [too_large, join("m2")], 0)
    assert [code_of(answer) for answer in answers] == [Code.GROUP_MAX_SIZE_REACHED, Code.NONE]
    carry_out(shard, outcome)
    assert set(shard.groups["g"].members) == {"m0", "m2"}


def test_members_beyond_the_limit_are_refused(shard: Shard) -> None:
    answers, outcome = shard.consumer_joins("g", [join(f"m{number}") for number in range(8)], 0)
    assert [code_of(answer) for answer in answers] == [Code.NONE] * 6 + [Code.GROUP_MAX_SIZE_REACHED] * 2
    carry_out(shard, outcome)
    assert len(shard.groups["g"].members) == 6


def test_if_all_are_refused_there_is_no_group(shard: Shard) -> None:
    answers, outcome = shard.consumer_joins("g", [join("m0", topics=None), join("m1", topics=None)], 0)
    assert [code_of(answer) for answer in answers] == [Code.INVALID_REQUEST] * 2
    assert not outcome.records
    assert not shard.groups


class Door:
    """Lets members in when it is told to, and notes who came together."""

    def __init__(self) -> None:
        self.together: list[list[str]] = []
        self.is_asked = asyncio.Event()
        self.is_open = asyncio.Event()
        self.error: Exception | None = None
        self.joins = ConsumerJoins(self.let_in, self.spawn)
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def let_in(self, group_id: str, take: Take) -> list[HeartbeatAnswer | ApiError]:
        if isinstance(self.error, ApiError):
            raise self.error
        events = take()
        self.together.append([event.member_id for event in events])
        self.is_asked.set()
        await self.is_open.wait()
        if self.error is not None:
            raise self.error
        return [
            ApiError(Code.INVALID_REQUEST)
            if event.topics is None
            else HeartbeatAnswer(member_id=event.member_id, epoch=1)
            for event in events
        ]

    def join(self, *member_ids: str, **said: Any) -> list[asyncio.Task[HeartbeatAnswer]]:
        return [asyncio.ensure_future(self.joins.join("g", join(each, **said))) for each in member_ids]


async def test_those_of_one_turn_and_those_who_come_while_the_group_writes_are_let_in_together() -> None:
    door = Door()
    first = door.join("a", "b")
    await door.is_asked.wait()
    later = [*door.join("c"), *door.join("d", topics=None), *door.join("e")]
    gone = door.join("f")
    await asyncio.sleep(0)
    gone[0].cancel()
    door.is_open.set()
    answers = await asyncio.gather(*first, *later, return_exceptions=True)
    assert door.together == [["a", "b"], ["c", "d", "e", "f"]]
    assert [each.member_id if isinstance(each, HeartbeatAnswer) else type(each) for each in answers] == [
        "a",
        "b",
        "c",
        ApiError,
        "e",
    ]
    again = door.join("g")
    assert (await again[0]).member_id == "g"


async def test_a_group_that_is_not_here_refuses_all_who_wait() -> None:
    door = Door()
    door.error = ApiError(Code.NOT_COORDINATOR)
    answers = await asyncio.gather(*door.join("a", "b"), return_exceptions=True)
    assert [each.code for each in answers if isinstance(each, ApiError)] == [Code.NOT_COORDINATOR] * 2


async def test_nobody_waits_for_ever_if_the_broker_fails() -> None:
    door = Door()
    door.error = RuntimeError("a mistake")
    door.is_open.set()
    joining = door.join("a", "b")
    await asyncio.wait(joining)
    assert all(each.cancelled() for each in joining)
    assert isinstance(door.tasks[0].exception(), RuntimeError)
    door.error = None
    assert (await door.join("c")[0]).member_id == "c"
