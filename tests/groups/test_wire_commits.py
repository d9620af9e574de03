"""Commits of many partitions on the wire: every partition has its answer and its offset, the first time and again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

import pytest

from conftest import BrokerFactory
from penstock.errors import Code
from penstock.ids import NO_TOPIC_ID
from penstock.protocol import apis
from penstock.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.protocol.messages.describe_groups import DescribeGroupsRequest
from penstock.protocol.messages.find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from support.broker_process import BrokerProcess
from support.waiting import until
from support.wire import Wire

BY_NAME, BY_ID = 9, 10
NOTHING = -1


def find(wire: Wire, group: str) -> None:
    until(
        lambda: wire.ask(apis.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group, key_type=0))["error_code"] == 0,
        "there is a coordinator",
    )


def commit(
    wire: Wire,
    group: str,
    topics: Iterable[tuple[str | UUID, Mapping[int, int]]],
    version: int = BY_NAME,
    metadata: Mapping[int, str | None] | None = None,
    member_id: str = "",
) -> list[tuple[int, int]]:
    """Commits offsets by partition of each topic, with the partition's number as the leader epoch; gives partitions and
    codes as they are answered.
    """
    said = metadata or {}
    request = OffsetCommitRequest(
        group_id=group,
        topics=tuple(
            OffsetCommitRequestTopic(
                **({"name": topic} if isinstance(topic, str) else {"topic_id": topic}),
                partitions=tuple(
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=index,
                        committed_metadata=said.get(index, ""),
                    )
                    for index, offset in offsets.items()
                ),
            )
            for topic, offsets in topics
        ),
        member_id=member_id,
        generation_id_or_member_epoch=3 if member_id else -1,
    )
    answer = wire.ask(apis.OFFSET_COMMIT, version, request)
    return [
        (found["partition_index"], found["error_code"]) for topic in answer["topics"] for found in topic["partitions"]
    ]


def committed(wire: Wire, group: str, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int, str]]:
    """Offset, leader epoch and metadata."""
    asked = OffsetFetchRequestTopics(name=topic, topic_id=NO_TOPIC_ID, partition_indexes=tuple(partitions))
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group, topics=(asked,)),))
    ((found,),) = (each["topics"] for each in wire.ask(apis.OFFSET_FETCH, 9, request)["groups"])
    return {
        each["partition_index"]: (each["committed_offset"], each["committed_leader_epoch"], each["metadata"])
        for each in found["partitions"]
    }


@pytest.mark.parametrize("version", [7, 8, BY_NAME, BY_ID])
def test_what_is_committed_again_and_again_is_what_was_committed_last(
    broker: BrokerProcess, topic: str, version: int
) -> None:
    with Wire(broker.address) as wire:
        id_ = wire.create_topic(topic, 200)
        find(wire, topic)
        for offset in (1, 1 << 40, 7):
            offsets = {index: offset + index for index in reversed(range(200))}
            answered = commit(wire, topic, [(id_ if version == BY_ID else topic, offsets)], version)
            assert answered == [(index, 0) for index in offsets]
            held = committed(wire, topic, topic, range(200))
            assert held == {index: (offset + index, index, "") for index in range(200)}
        with_metadata = {3: "here", 5: None}
        assert commit(wire, topic, [(topic, {3: 50, 4: 50, 5: 50})], metadata=with_metadata) == [(3, 0), (4, 0), (5, 0)]
        assert committed(wire, topic, topic, range(2, 7)) == {
            2: (9, 2, ""),
            3: (50, 3, "here"),
            4: (50, 4, ""),
            5: (50, 5, ""),
            6: (13, 6, ""),
        }


@pytest.mark.parametrize(
    "known", [500, pytest.param(3000, marks=pytest.mark.log_files("a database takes longer for 3,000 tables"))]
)
def test_unknown_ones_among_many_are_told_in_their_places(broker: BrokerProcess, topic: str, known: int) -> None:
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    with Wire(broker.address) as wire:
        wire.create_topic(topic, known)
        find(wire, topic)
        offsets = dict.fromkeys(range(known), 5) | {known: 5, -1: 5, 1 << 30: 5}
        order = [*range(10), known, -1, 1 << 30, *range(10, known)]
        for offset in (5, 6):
            wanted = dict.fromkeys(order, offset)
            answered = commit(wire, topic, [(topic, wanted), (f"{topic}-not", {0: 1}), (topic, {})])
            codes = [(index, 0 if 0 <= index < known else unknown) for index in order]
            assert answered == [*codes, (0, unknown)]
            held = committed(wire, topic, topic, sorted(offsets))
            assert {index: each[0] for index, each in held.items()} == {
                index: offset if 0 <= index < known else NOTHING for index in offsets
            }


def test_partition_named_twice_is_committed_once(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic, 2)
        find(wire, topic)
        for _ in range(2):
            assert commit(wire, topic, [(topic, {0: 1, 1: 1}), (topic, {0: 2})]) == [(0, 0), (1, 0), (0, 0)]
            assert committed(wire, topic, topic, (0, 1)) == {0: (2, 0, ""), 1: (1, 1, "")}


def test_topic_that_grows_takes_commits_of_its_new_partitions(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic, 1)
        find(wire, topic)
        offsets = {0: 1, 1: 1}
        for _ in range(2):
            assert commit(wire, topic, [(topic, offsets)]) == [(0, 0), (1, Code.UNKNOWN_TOPIC_OR_PARTITION)]
        grown = CreatePartitionsTopic(name=topic, count=2, assignments=None)
        wire.ask(apis.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=(grown,), timeout_ms=10_000))
        for _ in range(2):
            assert commit(wire, topic, [(topic, offsets)]) == [(0, 0), (1, 0)]


def test_topic_that_is_deleted_takes_no_more_commits(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        id_ = wire.create_topic(topic, 2)
        find(wire, topic)
        offsets = {0: 1, 1: 1}
        for version, named in ((BY_NAME, topic), (BY_ID, id_)):
            for _ in range(2):
                assert commit(wire, topic, [(named, offsets)], version) == [(0, 0), (1, 0)]
        gone = DeleteTopicState(name=topic, topic_id=NO_TOPIC_ID)
        wire.ask(apis.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=(gone,), timeout_ms=10_000))
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert commit(wire, topic, [(topic, offsets)]) == [(0, unknown), (1, unknown)]
        wire.create_topic(topic, 1)
        until(lambda: committed(wire, topic, topic, (0,))[0][0] == NOTHING, "its offsets went with it")
        assert commit(wire, topic, [(topic, offsets)]) == [(0, 0), (1, unknown)]
        # The id is that of the former topic.
        not_known = Code.UNKNOWN_TOPIC_ID
        assert commit(wire, topic, [(id_, offsets)], BY_ID) == [(0, not_known), (1, not_known)]


def test_who_is_no_member_any_more_is_refused_also_when_he_commits_what_he_did_before(
    broker: BrokerProcess, topic: str
) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic, 2)
        find(wire, topic)
        offsets = {0: 1, 1: 1}
        assert commit(wire, topic, [(topic, offsets)]) == [(0, 0), (1, 0)]
        refused = Code.UNKNOWN_MEMBER_ID
        assert commit(wire, topic, [(topic, {0: 2, 1: 2})], member_id="m") == [(0, refused), (1, refused)]
        assert committed(wire, topic, topic, (0, 1)) == {0: (1, 0, ""), 1: (1, 1, "")}


def test_group_has_room_for_so_many_offsets(new_broker: BrokerFactory) -> None:
    broker = new_broker({"groups.offsets_per_group": "10"})
    with Wire(broker.address) as wire:
        wire.create_topic("orders", 20)
        find(wire, "g")
        first = dict.fromkeys(range(8), 1)
        for _ in range(2):
            assert commit(wire, "g", [("orders", first)]) == [(index, 0) for index in first]
        more = dict.fromkeys(range(6, 13), 2)
        for _ in range(2):
            full = Code.INVALID_COMMIT_OFFSET_SIZE
            assert commit(wire, "g", [("orders", more)]) == [(index, 0 if index < 10 else full) for index in more]
        assert committed(wire, "g", "orders", range(13)) == {
            index: (1, index, "") if index < 6 else (2, index, "") if index < 10 else (NOTHING, NOTHING, "")
            for index in range(13)
        }


def test_commits_are_there_after_a_crash(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic("orders", 300)
        wire.create_topic("payments", 300)
        find(wire, "g")
        for offset in range(1, 6):
            offsets = dict.fromkeys(range(300), offset)
            assert not any(code for _, code in commit(wire, "g", [("orders", offsets), ("payments", offsets)]))
        assert commit(wire, "g", [("payments", {7: 70})]) == [(7, 0)]
    broker.kill()
    broker.start()
    with Wire(broker.address) as wire:
        find(wire, "g")
        assert committed(wire, "g", "orders", range(300)) == {index: (5, index, "") for index in range(300)}
        assert committed(wire, "g", "payments", (6, 7)) == {6: (5, 6, ""), 7: (70, 7, "")}


@pytest.mark.log_files("a log in a database has no files")
def test_files_of_a_shard_are_made_when_it_is_asked_about_and_not_at_its_first_write(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        find(wire, "g")
        assert not list((broker.data / "logs").glob("__consumer_offsets-*"))
        wire.ask(apis.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=("g",)))
        until(lambda: len(list((broker.data / "logs").glob("__consumer_offsets-*/*.log"))) == 1, "its files are there")
