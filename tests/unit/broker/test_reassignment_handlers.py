"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments over a real controller and tree."""

from __future__ import annotations

from math import inf

import pytest

from penstock.broker.handlers.reassignments import ReassignmentHandlers
from penstock.broker.requests.context import RequestContext
from penstock.clock import ManualClock
from penstock.cluster.metadata import NO_LEADER, BrokerInfo, PartitionImage, TopicImage
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.broker import Limits
from penstock.errors import Code
from penstock.ids import BrokerId, new_topic_id
from penstock.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.elect_leaders import PREFERRED, UNCLEAN, ElectLeadersRequest, TopicPartitions
from penstock.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.replicas import Replicas
from support import callers
from support.logs import settings
from support.tree import Tree, register

CONTEXT = RequestContext(1, callers.client())


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


@pytest.fixture
async def metadata(tree: Tree) -> MetadataChanges:
    """Four brokers, the last of which is away, and a topic whose partitions are in different states."""
    metadata = MetadataChanges(tree, MetadataSettings("cluster", BrokerId(1)))
    await metadata.start()
    for id in ids(1, 2, 3, 4):
        await register(metadata, BrokerInfo(id, "127.0.0.1", 9092, is_alive=id != 4))
    partitions = (
        PartitionImage(0, BrokerId(1), 5, ids(1, 2), ids(1, 2)),
        PartitionImage(1, BrokerId(2), 5, ids(1, 2), ids(1, 2)),
        PartitionImage(2, BrokerId(2), 5, ids(1, 2), ids(2)),
        PartitionImage(3, NO_LEADER, 5, ids(4, 2), ids(4)),
        PartitionImage(4, NO_LEADER, 5, ids(4), ids(4)),
    )
    await metadata.change(lambda draft: put(draft, TopicImage("t", new_topic_id(), partitions)))
    return metadata


def put(draft: MetadataDraft, topic: TopicImage) -> None:
    draft.put_topic(topic)


@pytest.fixture
def handlers(metadata: MetadataChanges) -> ReassignmentHandlers:
    """Of a broker that carries out nothing: there is nothing to wait for."""
    lease, rules = LeaderLease(ManualClock(), lambda: inf, 1000), LagRules(max_ms=1000, max_messages=0)
    replicas = Replicas(BrokerId(1), {}, lambda topic, image: settings(), lease, rules)
    return ReassignmentHandlers(metadata, Limits(topics_per_request=2), replicas)


async def elect(handlers: ReassignmentHandlers, kind: int, *indexes: int) -> dict[int, int]:
    request = ElectLeadersRequest(
        election_type=kind, topic_partitions=(TopicPartitions(topic="t", partitions=indexes),)
    )
    response = await handlers.elect_leaders(request, CONTEXT)
    assert response.error_code == 0
    (topic,) = response.replica_election_results
    return {result.partition_id: result.error_code for result in topic.partition_result}


async def move(
    handlers: ReassignmentHandlers, index: int, *replicas: int, name: str = "t", **more: bool
) -> tuple[int, str | None]:
    return await alter(handlers, ReassignablePartition(partition_index=index, replicas=replicas), name, **more)


async def alter(
    handlers: ReassignmentHandlers, partition: ReassignablePartition, name: str = "t", **more: bool
) -> tuple[int, str | None]:
    request = AlterPartitionReassignmentsRequest(
        topics=(ReassignableTopic(name=name, partitions=(partition,)),), **more
    )
    response = await handlers.alter_reassignments(request, CONTEXT)
    ((answer,),) = (topic.partitions for topic in response.responses)
    return answer.error_code, answer.error_message


class TestElectLeaders:
    async def test_preferred_replicas_lead_where_they_can(
        self, handlers: ReassignmentHandlers, metadata: MetadataChanges
    ) -> None:
        assert await elect(handlers, PREFERRED, 0, 1, 2, 9) == {
            0: Code.ELECTION_NOT_NEEDED,
            1: Code.NONE,
            2: Code.PREFERRED_LEADER_NOT_AVAILABLE,
            9: Code.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert (
            metadata.image.topics["t"].partitions[1].leader,
            metadata.image.topics["t"].partitions[1].leader_epoch,
        ) == (
            1,
            6,
        )

    async def test_an_unclean_election_takes_whoever_is_there(
        self, handlers: ReassignmentHandlers, metadata: MetadataChanges
    ) -> None:
        assert await elect(handlers, UNCLEAN, 0, 3, 4) == {
            0: Code.ELECTION_NOT_NEEDED,
            3: Code.NONE,
            4: Code.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        }
        elected = metadata.image.topics["t"].partitions[3]
        assert (elected.leader, elected.in_sync) == (2, ids(2))

    async def test_of_all_partitions_only_those_that_need_it_are_told(self, handlers: ReassignmentHandlers) -> None:
        response = await handlers.elect_leaders(ElectLeadersRequest(), CONTEXT)
        (topic,) = response.replica_election_results
        assert [result.partition_id for result in topic.partition_result] == [1, 2, 3, 4]

    async def test_an_election_that_cannot_be_written_is_no_success(
        self, handlers: ReassignmentHandlers, tree: Tree
    ) -> None:
        tree.is_broken = True
        assert await elect(handlers, PREFERRED, 1) == {1: Code.UNKNOWN_SERVER_ERROR}
        assert (await handlers.elect_leaders(ElectLeadersRequest(), CONTEXT)).error_code == Code.UNKNOWN_SERVER_ERROR

    async def test_an_unknown_kind_of_election_and_too_many_topics_are_refused(
        self, handlers: ReassignmentHandlers
    ) -> None:
        for request in (
            ElectLeadersRequest(election_type=2),
            ElectLeadersRequest(topic_partitions=tuple(TopicPartitions(topic=n, partitions=()) for n in "abc")),
        ):
            assert (await handlers.elect_leaders(request, CONTEXT)).error_code == Code.INVALID_REQUEST


class TestReassignments:
    async def test_a_partition_is_moved_listed_and_given_up(
        self, handlers: ReassignmentHandlers, metadata: MetadataChanges
    ) -> None:
        assert await move(handlers, 0, 3, 2) == (0, None)
        (topic,) = (await handlers.list_reassignments(ListPartitionReassignmentsRequest(), CONTEXT)).topics
        (moving,) = topic.partitions
        assert (moving.partition_index, moving.replicas) == (0, ids(3, 2, 1))
        assert (moving.adding_replicas, moving.removing_replicas) == (ids(3), ids(1))
        assert await alter(handlers, ReassignablePartition(partition_index=0)) == (0, None)
        assert (await handlers.list_reassignments(ListPartitionReassignmentsRequest(), CONTEXT)).topics == ()
        assert sorted(metadata.image.topics["t"].partitions[0].replicas) == [1, 2]

    async def test_only_what_is_asked_for_is_listed(self, handlers: ReassignmentHandlers) -> None:
        await move(handlers, 0, 3, 2)
        for indexes, found in (((0, 1), 1), ((1,), 0)):
            asked = (ListPartitionReassignmentsTopics(name="t", partition_indexes=indexes),)
            response = await handlers.list_reassignments(ListPartitionReassignmentsRequest(topics=asked), CONTEXT)
            assert len(response.topics) == found

    @pytest.mark.parametrize("replicas", [(), (1, 1), (1, 9), (1, 4)])
    async def test_replicas_that_cannot_be_had_are_refused(
        self, handlers: ReassignmentHandlers, replicas: tuple[int, ...]
    ) -> None:
        code, message = await move(handlers, 0, *replicas)
        assert code == Code.INVALID_REPLICA_ASSIGNMENT
        assert message

    async def test_a_replica_that_is_away_may_stay(
        self, handlers: ReassignmentHandlers, metadata: MetadataChanges
    ) -> None:
        assert await move(handlers, 3, 4, 3) == (0, None)
        assert metadata.image.topics["t"].partitions[3].adding == ids(3)

    async def test_what_is_not_there_cannot_be_moved_or_given_up(self, handlers: ReassignmentHandlers) -> None:
        assert (await move(handlers, 9, 1))[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert (await move(handlers, 0, 1, name="other"))[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
        code, _ = await alter(handlers, ReassignablePartition(partition_index=0))
        assert code == Code.NO_REASSIGNMENT_IN_PROGRESS

    async def test_the_replication_factor_changes_unless_that_is_not_wanted(
        self, handlers: ReassignmentHandlers, metadata: MetadataChanges
    ) -> None:
        code, _ = await move(handlers, 0, 1, allow_replication_factor_change=False)
        assert code == Code.INVALID_REPLICATION_FACTOR
        assert await move(handlers, 0, 1, 2, 3) == (0, None)
        assert metadata.image.topics["t"].partitions[0].target == ids(1, 2, 3)

    async def test_too_many_topics_are_refused(self, handlers: ReassignmentHandlers) -> None:
        request = AlterPartitionReassignmentsRequest(
            topics=tuple(ReassignableTopic(name=name, partitions=()) for name in "abc")
        )
        assert (await handlers.alter_reassignments(request, CONTEXT)).error_code == Code.INVALID_REQUEST
