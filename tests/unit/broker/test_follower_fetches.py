"""Sessions of followers: what a fetch need not name again, what is answered, and what is heard of whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from penstock.cluster.metadata import PartitionImage
from penstock.config.broker import Limits
from penstock.errors import ApiError, Code, ProtocolError
from penstock.ids import broker_client_id
from penstock.protocol.replica_fetch import ReplicaResult
from penstock.replication.leadership import LagRules
from support import callers
from support.followed import FOLLOWED_WITHIN_MS, LAG_MS, LONG_MS, ME, OTHER, PARTITIONS, Leader


async def everything(leader: Leader) -> dict[int, ReplicaResult]:
    return await leader.fetch(*((index, 0) for index in range(PARTITIONS)))


async def test_what_is_not_named_again_is_still_followed_and_its_news_are_answered(leader: Leader) -> None:
    assert (await everything(leader)).keys() == {0, 1, 2}
    assert await leader.fetch() == {}
    await leader.append(1)
    found = await leader.fetch()
    assert found.keys() == {1} and len(found[1].records)
    found = await leader.fetch((1, 1))
    assert found.keys() == {1} and found[1].high_watermark == 1


async def test_a_fetch_that_waits_is_answered_when_something_grows_that_it_does_not_name(leader: Leader) -> None:
    await everything(leader)
    fetch = asyncio.ensure_future(leader.fetch(wait_ms=LONG_MS))
    await asyncio.sleep(0)
    await leader.append(2)
    assert (await fetch).keys() == {2}


async def test_records_that_were_given_are_given_again_until_the_follower_names_a_later_place(leader: Leader) -> None:
    await everything(leader)
    await leader.append(0)
    for _ in range(3):
        assert len((await leader.fetch())[0].records)
    assert leader[0].high_watermark == 0


async def test_a_watermark_that_rises_by_another_is_told_with_the_next_answer(leader: Leader) -> None:
    await everything(leader)
    await leader.append(0)
    await leader.fetch()
    await leader.fetch((0, 1))
    leader[0].lead(
        ME, PartitionImage(0, ME, 0, (ME, OTHER), (ME,)), frozenset({ME, OTHER}), LagRules(max_ms=0, max_messages=0)
    )
    await leader.append(0)
    await leader.append(1)
    assert (await leader.fetch()).keys() == {0, 1}


async def test_what_is_forgotten_is_not_answered_any_more(leader: Leader) -> None:
    await everything(leader)
    await leader.fetch(forgotten=(1,))
    await leader.append(1)
    assert await leader.fetch() == {}
    assert len((await leader.fetch((1, 0)))[1].records)


async def test_a_fetch_that_does_not_repeat_the_last_number_is_told_so(leader: Leader) -> None:
    await everything(leader)
    with pytest.raises(AssertionError, match="FETCH_SESSION_ID_NOT_FOUND"):
        await leader.fetch(number=leader.number + 1)
    assert (await leader.fetch((0, 0), number=0)).keys() == {0}


async def test_a_follower_whose_records_are_all_past_retention_is_told_where_to_begin(leader: Leader) -> None:
    await leader.append(0)
    await leader.append(0)
    await leader.fetch((0, 2))
    await leader[0].trim(2)
    found = (await leader.fetch((0, 0), number=0))[0]
    assert (found.error_code, found.log_start_offset) == (Code.OFFSET_OUT_OF_RANGE, 2)


async def test_another_epoch_is_an_error_for_who_followed_in_the_old_one(leader: Leader) -> None:
    await everything(leader)
    fetch = asyncio.ensure_future(leader.fetch(wait_ms=LONG_MS))
    await asyncio.sleep(0)
    await leader.change(1, epoch=1)
    found = await fetch
    assert {index: result.error_code for index, result in found.items()} == {1: Code.FENCED_LEADER_EPOCH}
    assert (await leader.fetch(forgotten=(1,))) == {}
    assert (await leader.fetch((1, 0), epoch=1))[1].error_code == 0


async def test_who_has_all_and_goes_on_fetching_is_in_sync_however_long_nothing_comes(leader: Leader) -> None:
    await everything(leader)
    for _ in range(5):
        leader.clock.advance(LAG_MS - 100)
        await leader.fetch()
    await leader.append(0)
    leadership = leader[0].leadership
    assert leadership is not None
    assert leadership.proposal(1, leader.clock.monotonic_ms()) is None
    leader.clock.advance(LAG_MS + 1)
    await leader.fetch()
    assert leadership.proposal(1, leader.clock.monotonic_ms()) == frozenset({ME})


async def test_a_leader_past_its_lease_leads_what_is_heard_to_be_followed_and_nothing_else(leader: Leader) -> None:
    await everything(leader)
    leader.lease_until_ms = 0.0
    leader.clock.advance(FOLLOWED_WITHIN_MS * 2)
    await leader.fetch()
    leader.clock.advance(1)
    await leader.fetch(forgotten=(1,))
    leader.clock.advance(FOLLOWED_WITHIN_MS - 10)
    await leader.fetch()
    await leader.fetch()
    leader.clock.advance(20)
    leader[0].check_leads()
    with pytest.raises(ApiError, match="is led by"):
        leader[1].check_leads()


async def test_a_session_that_was_given_up_is_not_heard_any_more(leader: Leader) -> None:
    await everything(leader)
    old = asyncio.ensure_future(leader.fetch(wait_ms=LONG_MS))
    await asyncio.sleep(0)
    await leader.append(0)
    assert len((await old)[0].records)
    number = leader.number
    stuck = asyncio.ensure_future(leader.fetch((0, 0), wait_ms=LONG_MS, forgotten=(0,)))
    await asyncio.sleep(0)
    await leader.fetch((0, 1), (1, 0), (2, 0), number=0)
    await stuck
    assert leader[0].high_watermark == 1
    assert leader[0].leadership is not None
    assert leader[0].leadership.end_of(OTHER) == 1
    with pytest.raises(AssertionError, match="FETCH_SESSION_ID_NOT_FOUND"):
        await leader.fetch(number=number)


async def test_only_brokers_of_the_cluster_may_fetch_as_followers(leader: Leader) -> None:
    for stranger in (0, 3, 12_349, (1 << 31) - 1):
        with pytest.raises(ProtocolError, match=f"broker {stranger}"):
            await leader.fetch((0, 0), follower=stranger, number=0)
    assert leader.handler.follower_sessions == 0


async def test_a_client_that_fetches_as_a_follower_is_refused_and_moves_no_high_watermark(leader: Leader) -> None:
    await everything(leader)
    await leader.append(0)
    for forger in (callers.client(), callers.client("penstock-2")):
        for number in (0, leader.number):
            found = await leader.fetch((0, 1), number=number, caller=forger)
            assert found[0].error_code == Code.TOPIC_AUTHORIZATION_FAILED
            assert len(found[0].records) == 0
    assert leader[0].high_watermark == 0
    assert leader.handler.follower_sessions == 1


async def test_replica_ids_below_zero_are_those_of_consumers(leader: Leader) -> None:
    """Kafka's debugging consumer (-2) and its future replica (-3) see no more than any consumer."""
    await leader.append(0)
    for replica_id in (-1, -2, -3):
        found = await leader.fetch((0, 0), number=0, follower=replica_id, caller=callers.client())
        assert (found[0].error_code, len(found[0].records), found[0].high_watermark) == (Code.NONE, 0, 0)
    assert leader.handler.follower_sessions == 0


async def test_a_broker_of_a_version_without_named_listeners_is_known_by_its_client_id(leader: Leader) -> None:
    older = replace(leader.image.brokers[OTHER], inter_broker_listener=None)
    leader.image = replace(leader.image, brokers={**leader.image.brokers, OTHER: older})
    upgrading = callers.client(broker_client_id(OTHER))
    assert (await leader.fetch((0, 0), number=0, caller=upgrading))[0].error_code == Code.NONE
    found = await leader.fetch((0, 0), number=0, caller=callers.client("somebody"))
    assert found[0].error_code == Code.TOPIC_AUTHORIZATION_FAILED
    leader.image = replace(leader.image, brokers={**leader.image.brokers, OTHER: replace(older, is_alive=False)})
    found = await leader.fetch((0, 0), number=0, caller=upgrading)
    assert found[0].error_code == Code.TOPIC_AUTHORIZATION_FAILED


async def test_a_session_ends_when_its_broker_has_gone(leader: Leader) -> None:
    await everything(leader)
    assert leader.handler.follower_sessions == 1
    gone = replace(leader.image, brokers={ME: leader.image.brokers[ME]})
    leader.handler.image_changed(leader.image, gone)
    assert leader.handler.follower_sessions == 0
    with pytest.raises(AssertionError, match="FETCH_SESSION_ID_NOT_FOUND"):
        await leader.fetch()


async def test_a_session_that_names_more_than_there_can_be_ends() -> None:
    leader = Leader(Limits(idle_connection_ms=LONG_MS, partitions=10))
    await leader.open()
    await leader.fetch(*((index, 0) for index in range(11)))
    with pytest.raises(AssertionError, match="FETCH_SESSION_ID_NOT_FOUND"):
        await leader.fetch(*((index, 0) for index in range(11, 20)))
    assert leader.handler.follower_sessions == 0
    await leader.close()
