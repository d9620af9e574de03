"""Decisions about single partitions that an operator asks for: elections by hand and reassignments.

Pure: takes the draft of the next image and the request, gives the partition as it shall be, or an `ApiError` with
Kafka's code. Nothing here writes to the draft.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.cluster.decisions import elections, reassignment, shared_storage
from penstock.cluster.decisions.topics import check_replicas
from penstock.cluster.metadata import NO_LEADER, PartitionImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId, TopicPartition


def partition_at(draft: MetadataDraft, at: TopicPartition) -> PartitionImage:
    topic = draft.topics.get(at.topic)
    if topic is None or not 0 <= at.partition < len(topic.partitions):
        raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {at.topic}-{at.partition}.")
    return topic.partitions[at.partition]


def elected(draft: MetadataDraft, at: TopicPartition, *, is_unclean: bool) -> PartitionImage:
    """The partition led by its preferred replica; with `is_unclean`, by any that is alive if it has no leader."""
    partition = partition_at(draft, at)
    alive = shared_storage.able_to_lead(draft, partition) if draft.topics[at.topic].is_shared else draft.alive
    if is_unclean:
        if partition.leader != NO_LEADER:
            raise ApiError(Code.ELECTION_NOT_NEEDED, f"Broker {partition.leader} leads the partition.")
        after = elections.elect(partition, alive, is_unclean=True)
        if after.leader == NO_LEADER:
            raise ApiError(Code.ELIGIBLE_LEADERS_NOT_AVAILABLE, "None of the replicas is alive.")
        return after
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise ApiError(Code.ELECTION_NOT_NEEDED, f"Broker {preferred}, the preferred one, leads the partition.")
    after = elections.prefer(partition, alive)
    if after.leader != preferred:
        raise ApiError(
            Code.PREFERRED_LEADER_NOT_AVAILABLE, f"Broker {preferred}, the preferred one, is not alive and in sync."
        )
    return after


def without_unneeded(
    results: Mapping[TopicPartition, ApiError | None],
) -> Mapping[TopicPartition, ApiError | None]:
    """A request for all partitions gets no results for those that are as they should be."""
    return {at: error for at, error in results.items() if error is None or error.code is not Code.ELECTION_NOT_NEEDED}


def moved(
    draft: MetadataDraft, at: TopicPartition, target: tuple[BrokerId, ...] | None, *, may_change_factor: bool
) -> PartitionImage:
    """The partition on its way to these replicas, or, for None, back to those that it had. In shared storage it is
    there at once.
    """
    partition = partition_at(draft, at)
    if target is None:
        return reassignment.cancel(partition, draft.alive)
    if draft.topics[at.topic].is_shared:
        reason = shared_storage.check_assignment(draft, target, partition)
        if reason:
            raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, f"The partition assignment {reason}.")
        return partition if partition.leader == target[0] else partition.handed_to(target[0])
    # A replica that is away may stay where it is; a new one has to be there to catch up.
    away = {broker for broker in partition.replicas if broker not in draft.alive}
    reason = check_replicas(draft, target, may_be_away=away)
    if reason:
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, f"The partition assignment {reason}.")
    if not may_change_factor and len(target) != len(partition.target):
        raise ApiError(
            Code.INVALID_REPLICATION_FACTOR,
            f"The replication factor would change from {len(partition.target)} to {len(target)}.",
        )
    return reassignment.reassign(partition, target, draft.alive)
