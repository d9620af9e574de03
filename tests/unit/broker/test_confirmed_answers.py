"""Answers that are true only of a leader, past its lease: every in-sync follower has to fetch once more first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.handlers.offsets import OffsetHandlers
from penstock.broker.requests.context import RequestContext
from penstock.cluster.metadata import TopicImage
from penstock.delay.delays import Delays
from penstock.errors import ApiError, Code
from penstock.protocol.fetch import FetchPartition, FetchRequest
from penstock.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.views.catalogue import Catalogue
from support import callers
from support.followed import FOLLOWED_WITHIN_MS, LONG_MS, OTHER, PARTITIONS, Leader
from support.logs import ALL, AT, TOPIC_ID

CONTEXT = RequestContext(7, callers.client())


class Client:
    def __init__(self, leader: Leader, folder: Path) -> None:
        self._handlers = OffsetHandlers(leader.replicas, Catalogue(leader.image), Delays(leader.clock), folder)

    async def ends(self, *indexes: int) -> list[tuple[int, int]]:
        """The error and the end of each partition."""
        wanted = tuple(ListOffsetsPartition(partition_index=at, timestamp=LATEST_TIMESTAMP) for at in indexes)
        topics = (ListOffsetsTopic(name=AT.topic, partitions=wanted),)
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
        (answer,) = (await self._handlers.list_offsets(request, CONTEXT)).topics
        return [(found.error_code, found.offset) for found in answer.partitions]

    async def end_of_epoch(self) -> tuple[int, int]:
        wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        topics = (OffsetForLeaderTopic(topic=AT.topic, partitions=(wanted,)),)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
        ((found,),) = (
            each.partitions for each in (await self._handlers.offset_for_leader_epoch(request, CONTEXT)).topics
        )
        return found.error_code, found.end_offset

    async def delete_records(self) -> tuple[int, int]:
        wanted = DeleteRecordsPartition(partition_index=0, offset=1)
        topics = (DeleteRecordsTopic(name=AT.topic, partitions=(wanted,)),)
        request = DeleteRecordsRequest(topics=topics, timeout_ms=1000)
        ((found,),) = (each.partitions for each in (await self._handlers.delete_records(request, CONTEXT)).topics)
        return found.error_code, found.low_watermark


@pytest.fixture
async def client(leader: Leader, tmp_path: Path) -> Client:
    """Of a leader past its lease; its follower has all, and has just asked for more."""
    await leader.append(0)
    await leader.fetch((0, 1), (1, 0), (2, 0))
    await leader.fetch()
    leader.lease_until_ms = 0.0
    leader.clock.advance(1)
    return Client(leader, tmp_path)


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_while_the_lease_holds_nobody_is_asked(leader: Leader, client: Client) -> None:
    leader.lease_until_ms = leader.clock.monotonic_ms() + 1
    assert await client.ends(0) == [(Code.NONE, 1)]


@pytest.mark.parametrize(
    "ask, answer",
    [
        (lambda client: client.ends(0), [(Code.NONE, 1)]),
        (lambda client: client.end_of_epoch(), (Code.NONE, 1)),
        (lambda client: client.delete_records(), (Code.NONE, 1)),
    ],
    ids=["ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords"],
)
async def test_past_the_lease_an_answer_waits_for_the_followers(
    leader: Leader, client: Client, ask: Callable[[Client], Awaitable[object]], answer: object
) -> None:
    parked = asyncio.ensure_future(leader.fetch(wait_ms=LONG_MS))
    await some_turns()
    assert not parked.done()
    asked = asyncio.ensure_future(ask(client))
    await parked
    await some_turns()
    assert not asked.done(), "the follower was answered, and has not asked again"
    again = asyncio.ensure_future(leader.fetch(wait_ms=LONG_MS))
    assert await asked == answer
    await some_turns()
    assert not again.done(), "a follower that has shown that it follows may wait again"
    again.cancel()


async def test_a_fetch_that_was_on_its_way_when_the_client_asked_shows_nothing(leader: Leader, client: Client) -> None:
    asked = asyncio.ensure_future(client.ends(0))
    await some_turns()
    leader.clock.advance(1)
    await leader.fetch(wait_ms=LONG_MS)
    await some_turns()
    assert not asked.done(), "it was sent after an answer from before the question"
    await leader.fetch()
    assert await asked == [(Code.NONE, 1)]


async def test_one_fetch_of_each_follower_is_enough_for_all_partitions_of_a_request(
    leader: Leader, client: Client
) -> None:
    asked = asyncio.ensure_future(client.ends(*range(PARTITIONS)))
    await some_turns()
    await leader.fetch(wait_ms=LONG_MS)
    await leader.fetch()
    assert await asked == [(Code.NONE, 1), (Code.NONE, 0), (Code.NONE, 0)]


async def test_a_leader_that_is_not_followed_any_more_tells_no_end(leader: Leader, client: Client) -> None:
    assert await client.ends(0) == [(Code.NOT_LEADER_OR_FOLLOWER, -1)]


async def test_a_leader_that_hears_of_another_meanwhile_tells_no_end(leader: Leader, client: Client) -> None:
    asked = asyncio.ensure_future(client.ends(0))
    await some_turns()
    depose(leader)
    assert await asked == [(Code.NOT_LEADER_OR_FOLLOWER, -1)]


async def test_a_leader_stops_when_it_hears_of_another_and_not_when_the_image_is_applied(
    leader: Leader, client: Client
) -> None:
    leader.lease_until_ms = float("inf")
    depose(leader)
    assert await client.ends(0) == [(Code.NOT_LEADER_OR_FOLLOWER, -1)]
    with pytest.raises(ApiError):
        await leader.append(0)
    await leader.replicas.applied()
    assert (leader[0].leader, leader[0].leader_epoch) == (OTHER, 5)


async def test_an_older_image_that_is_applied_late_makes_no_leader_again(leader: Leader, client: Client) -> None:
    older = replace(leader.image, version=2, topics={AT.topic: replace(leader.topic)})
    leader.replicas.change(leader.image, older)
    depose(leader, older.topics[AT.topic])
    await leader.replicas.applied()
    assert leader[0].leadership is None


async def test_no_offset_is_out_of_range_while_another_leader_may_have_shown_it(leader: Leader, client: Client) -> None:
    asked = asyncio.ensure_future(leader[0].read(2, ALL))
    await some_turns()
    assert not asked.done()
    await leader.fetch(wait_ms=LONG_MS)
    await leader.fetch()
    with pytest.raises(ApiError) as refused:
        await asked
    assert refused.value.code is Code.OFFSET_OUT_OF_RANGE


async def test_a_consumer_is_sent_away_by_a_leader_that_was_left_alone(leader: Leader, client: Client) -> None:
    wanted = FetchPartition(None, TOPIC_ID.bytes, 0, -1, 1, -1, 0, ALL)
    request = FetchRequest(-1, 0, 1, ALL, 0, 0, -1, [wanted], [], "")
    assert not (await leader.handler.fetch(16, 7, request, callers.client())).failed
    leader.clock.advance(FOLLOWED_WITHIN_MS + 1)
    assert (await leader.handler.fetch(16, 7, request, callers.client())).failed


def depose(leader: Leader, topic: TopicImage | None = None) -> None:
    """An image says that the other one leads partition 0 in epoch 5."""
    partitions = (replace(leader.topic.partitions[0], leader=OTHER, leader_epoch=5), *leader.topic.partitions[1:])
    image = replace(leader.image, version=3, topics={AT.topic: replace(leader.topic, partitions=partitions)})
    before = replace(leader.image, topics={AT.topic: topic or leader.topic})
    leader.replicas.change(before, image)
