"""Batches of a transaction that wait for its coordinator while replicas change their roles."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from penstock.broker.transaction_verification import TransactionVerification, Verified
from penstock.errors import ApiError, Code
from penstock.ids import TopicPartition
from penstock.protocol.produce import ProducePartition
from penstock.records.batch import TRANSACTIONAL_BIT
from penstock.records.records import Record, build_batch
from support.followed import OTHER, Leader
from support.logs import AT, NOW_MS

PRODUCER = 7
VERSION = 12


class Coordinator:
    """On another broker; it answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[TopicPartition] = []
        self.answers = asyncio.Event()

    async def join(
        self, transactional_id: str, producer: object, partitions: Sequence[TopicPartition], **named: object
    ) -> dict[TopicPartition, Code]:
        self.asked.extend(partitions)
        await self.answers.wait()
        return dict.fromkeys(partitions, Code.NONE)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def verification(leader: Leader, coordinator: Coordinator) -> TransactionVerification:
    return TransactionVerification(leader.replicas, cast(Any, coordinator))


def wanted(*indexes: int) -> list[ProducePartition]:
    now = [Record(None, b"value", timestamp_ms=NOW_MS)]
    made = build_batch(now, attributes=TRANSACTIONAL_BIT, producer_id=PRODUCER, producer_epoch=0, base_sequence=0)
    return [ProducePartition(AT.topic, index, memoryview(made)) for index in indexes]


def code_for(verified: Verified, index: int) -> Code:
    found = verified.get(TopicPartition(AT.topic, index))
    return found.code if isinstance(found, ApiError) else Code.NONE


async def test_a_replica_that_does_not_lead_adds_nothing_to_a_transaction(
    leader: Leader, coordinator: Coordinator, verification: TransactionVerification
) -> None:
    coordinator.answers.set()
    leader[0].follow(OTHER, 5)
    verified = await verification.verify(VERSION, "t", wanted(0, 1))
    assert coordinator.asked == [TopicPartition(AT.topic, 1)]
    assert [code_for(verified, index) for index in (0, 1)] == [Code.NOT_LEADER_OR_FOLLOWER, Code.NONE]


async def test_what_a_log_said_before_its_replica_changed_its_role_does_not_count(
    leader: Leader, coordinator: Coordinator, verification: TransactionVerification
) -> None:
    """Partition 0 has the transaction open and is not asked about; 1 and 2 are."""
    (first,) = wanted(0)
    assert first.records is not None
    await leader[0].append(first.records, 1, guard=leader[0].log.producers.guard(PRODUCER))
    asking = asyncio.create_task(verification.verify(VERSION, "t", wanted(0, 1, 2)))
    await asyncio.sleep(0)
    assert [at.partition for at in coordinator.asked] == [1, 2]
    for index in (0, 1):
        leader[index].follow(OTHER, 5)
        await leader.change(index, 6)
        leader[index].check_is_leader()
    coordinator.answers.set()
    verified = await asking
    assert [code_for(verified, index) for index in (0, 1, 2)] == [
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.NONE,
    ]


@pytest.mark.parametrize(("version", "code"), [(12, Code.CONCURRENT_TRANSACTIONS), (11, Code.NOT_ENOUGH_REPLICAS)])
async def test_a_producer_tries_again_when_a_marker_arrives_while_the_coordinator_is_asked(
    leader: Leader, coordinator: Coordinator, verification: TransactionVerification, version: int, code: Code
) -> None:
    """A coordinator that takes over writes the markers of the last transaction again."""
    asking = asyncio.create_task(verification.verify(version, "t", wanted(0, 1)))
    await asyncio.sleep(0)
    marking = asyncio.create_task(leader[1].append_marker(PRODUCER, 0, committed=True, coordinator_epoch=3))
    await leader.fetch((1, 0))
    await leader.fetch((1, 1))
    await marking
    coordinator.answers.set()
    verified = await asking
    assert [code_for(verified, index) for index in (0, 1)] == [Code.NONE, code]
