"""Decisions about topics: what create, delete and add-partitions requests make of the cluster.

Pure: the draft of the next image and the request in, the topic as it shall be out, `ApiError` with Kafka's code for a
refusal. Nothing here writes to the draft.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from penstock.cluster import nodes
from penstock.cluster.coordination.contract import MAX_COMMIT_BYTES
from penstock.cluster.decisions import retired_partitions, shared_storage, views
from penstock.cluster.decisions.placement import place
from penstock.cluster.decisions.settings import check_given, check_overrides, with_storage
from penstock.cluster.metadata import INTERNAL_TOPICS, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.cluster.timer_topics import timer_topic
from penstock.config.retired import RETIRED_SETTING
from penstock.config.view import VIEW_OF_SETTING
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId, TopicId

USE_DEFAULT = -1
NAME_LENGTH_MAX = 249
# Kafka keeps its own metadata under this name; clients know that they cannot have it.
RESERVED_TOPIC = "__cluster_metadata"

MAX_TOPIC_BYTES = MAX_COMMIT_BYTES * 9 // 10
"""What a topic may take of a commit for a change on request; the rest is for what the controller does by itself."""
_FEW_PARTITIONS = 500
"""So few are never too large."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What the operator allows, and what holds when a request does not say."""

    default_partitions: int = 1
    default_replication_factor: int = 1
    partitions_per_topic: int = 10_000
    partitions: int = 100_000
    views_per_topic: int = 1000
    needs_leader: bool = True
    """Whether a topic in shared storage is refused while no broker can lead it. If not, the first that comes leads."""


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """The brokers that one partition shall be on, the preferred leader first."""

    partition: int
    replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """A topic to create; -1 stands for the default, as on the wire."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: tuple[ReplicaAssignment, ...] = ()
    overrides: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """How many partitions a topic shall have; `assignments` places the new ones, in order."""

    topic: str
    count: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


def check_name(name: str) -> None:
    """Kafka's rules for the name of a topic."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif not _LEGAL_NAME.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if reason:
        raise ApiError(Code.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def create_topic(
    draft: MetadataDraft, request: TopicCreation, topic_id: TopicId, rules: TopicRules, defaults: Mapping[str, str]
) -> TopicImage:
    """The topic to be created; `defaults` are those of topic settings, in topic names."""
    name = request.name
    if name in draft.topics:
        raise ApiError(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_name(name)
    if name == RESERVED_TOPIC:
        raise ApiError(Code.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    if (shown := timer_topic(name)) is not None:
        raise ApiError(
            Code.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: '{name}' shows what waits in '{shown.base}'"
        )
    colliding = draft.topic_colliding_with(name)
    if colliding is not None:
        raise ApiError(Code.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {colliding}")
    overrides = _overrides(request.overrides)
    check_overrides(overrides, defaults)
    if overrides.get(RETIRED_SETTING):
        raise ApiError(Code.INVALID_CONFIG, f"{RETIRED_SETTING}: a new topic has no partitions to retire")
    if VIEW_OF_SETTING in overrides:
        return views.new_view(
            draft,
            name,
            topic_id,
            overrides,
            partitions=request.partitions,
            replication_factor=request.replication_factor,
            has_assignments=bool(request.assignments),
            views_per_topic=rules.views_per_topic,
        )
    views.check_no_view(overrides)
    topic = TopicImage(name, topic_id, (), with_storage(overrides, defaults), name in INTERNAL_TOPICS)
    if request.assignments:
        partitions = _assigned_partitions(draft, request, topic)
    else:
        partitions = _placed_partitions(draft, request, rules, topic)
    _check_limits(draft, name, before=0, after=len(partitions), rules=rules)
    check_given(overrides, 0 if topic.is_shared else len(partitions[0].replicas))
    topic = replace(topic, partitions=partitions)
    check_size(topic)
    return topic


def delete_topic(draft: MetadataDraft, name: str, topic_id: TopicId | None = None) -> TopicImage:
    """The topic to be deleted; with `topic_id`, only if it is that one and not a later namesake."""
    topic = draft.topics.get(name)
    if topic is None:
        raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if topic_id is not None and topic.id != topic_id:
        raise ApiError(Code.UNKNOWN_TOPIC_ID, f"No topic has the id {topic_id}.")
    views.check_deletion(draft, topic)
    return topic


def add_partitions(draft: MetadataDraft, request: MorePartitions, rules: TopicRules) -> TopicImage:
    """The topic with its new partitions."""
    topic = draft.topics.get(request.topic)
    if topic is None:
        raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{request.topic}' does not exist.")
    views.check_growth(topic)
    before = len(topic.partitions)
    if request.count == before:
        raise ApiError(Code.INVALID_PARTITIONS, f"Topic already has {before} partition(s).")
    if request.count < before:
        raise ApiError(
            Code.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {before} partition(s); {request.count} would not be an increase.",
        )
    retired_partitions.check_growth(topic)
    _check_limits(draft, topic.name, before=before, after=request.count, rules=rules)
    factor = topic.replication_factor
    epoch = shared_storage.first_epoch(topic) if topic.is_shared else 0
    if request.assignments is None and topic.is_shared:
        placed = shared_storage.place(draft, topic, request.count - before, epoch, needs_leader=rules.needs_leader)
    elif request.assignments is None:
        placed = _place(draft, before, request.count - before, factor)
    else:
        if len(request.assignments) != request.count - before:
            raise ApiError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"{request.count - before} partition(s) are to be added, but "
                f"{len(request.assignments)} assignment(s) were given.",
            )
        for replicas in request.assignments:
            _check_assignment(draft, replicas, factor, is_shared=topic.is_shared)
        placed = [_new_partition(before + i, replicas, epoch) for i, replicas in enumerate(request.assignments)]
        if topic.is_shared:
            placed = shared_storage.in_databases(draft, topic, placed)
    grown = retired_partitions.grown(replace(topic, partitions=(*topic.partitions, *placed)))
    check_size(grown)
    return grown


def check_size(topic: TopicImage) -> None:
    """Refuses a topic that the coordination tree could not hold, or not for long: epochs grow, and replicas move."""
    if len(topic.partitions) < _FEW_PARTITIONS:
        return
    in_sync = tuple(
        each if each.in_sync == each.replicas else replace(each, in_sync=each.replicas) for each in topic.partitions
    )
    size = len(nodes.encode_topic(replace(topic, partitions=in_sync)))
    if size > MAX_TOPIC_BYTES:
        raise ApiError(
            Code.INVALID_PARTITIONS,
            f"Topic '{topic.name}' would be too large for the coordination tree: {len(topic.partitions)} partitions "
            f"and what is being moved of them take {size} bytes, {MAX_TOPIC_BYTES} are allowed.",
        )


def _overrides(given: Mapping[str, str | None]) -> Mapping[str, str]:
    without_value = [name for name, value in given.items() if value is None]
    if without_value:
        raise ApiError(Code.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(without_value)}")
    return MappingProxyType({name: value for name, value in given.items() if value is not None})


def _assigned_partitions(draft: MetadataDraft, request: TopicCreation, topic: TopicImage) -> tuple[PartitionImage, ...]:
    for given, noun in (
        (request.replication_factor, "replication factor"),
        (request.partitions, "numPartitions"),
    ):
        if given != USE_DEFAULT:
            raise ApiError(
                Code.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {noun} was not set to -1.",
            )
    by_index: dict[int, PartitionImage] = {}
    factor = None
    for assignment in request.assignments:
        if assignment.partition in by_index:
            raise ApiError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"Partition {assignment.partition} is assigned more than once.",
            )
        _check_assignment(draft, assignment.replicas, factor, is_shared=topic.is_shared)
        factor = len(assignment.replicas)
        by_index[assignment.partition] = _new_partition(assignment.partition, assignment.replicas)
    if sorted(by_index) != list(range(len(by_index))):
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, "Assigned partitions must be numbered from 0 without a gap.")
    assigned = [by_index[index] for index in range(len(by_index))]
    return tuple(shared_storage.in_databases(draft, topic, assigned) if topic.is_shared else assigned)


def _placed_partitions(
    draft: MetadataDraft, request: TopicCreation, rules: TopicRules, topic: TopicImage
) -> tuple[PartitionImage, ...]:
    if request.replication_factor < USE_DEFAULT or request.replication_factor == 0:
        raise ApiError(
            Code.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if request.partitions < USE_DEFAULT or request.partitions == 0:
        raise ApiError(
            Code.INVALID_PARTITIONS,
            "Number of partitions must be larger than 0, or -1 to use the default value.",
        )
    count = rules.default_partitions if request.partitions == USE_DEFAULT else request.partitions
    factor = request.replication_factor
    if factor == USE_DEFAULT:
        factor = rules.default_replication_factor
    # Before anything is built: a request for two billion partitions must not cost memory.
    _check_limits(draft, request.name, before=0, after=count, rules=rules)
    if topic.is_shared:
        # Ignore the requested factor: the storage decides how many copies there are.
        return tuple(shared_storage.place(draft, topic, count, needs_leader=rules.needs_leader))
    return tuple(_place(draft, 0, count, factor))


def _place(draft: MetadataDraft, first: int, count: int, factor: int) -> list[PartitionImage]:
    brokers = [broker.id for broker in draft.takers]
    if factor > len(brokers):
        raise ApiError(
            Code.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): {len(brokers)} broker(s) can take replicas.",
        )
    placed = place(draft.loads, brokers, count, factor)
    return [_new_partition(first + number, replicas) for number, replicas in enumerate(placed)]


def _new_partition(index: int, replicas: tuple[BrokerId, ...], epoch: int = 0) -> PartitionImage:
    return PartitionImage(index, leader=replicas[0], leader_epoch=epoch, replicas=replicas, in_sync=replicas)


def check_replicas(
    draft: MetadataDraft, replicas: Sequence[BrokerId], may_be_away: Collection[BrokerId] = ()
) -> str | None:
    """Why a partition cannot be on these brokers, as the end of a sentence; None if it can."""
    unknown = [broker for broker in replicas if broker not in draft.brokers]
    away = [broker for broker in replicas if broker not in draft.alive and broker not in may_be_away]
    if not replicas:
        return "includes an empty replica list"
    if unknown:
        return f"includes broker {unknown[0]}, but no such broker is registered"
    if away:
        return f"includes broker {away[0]}, which is not alive"
    if len(set(replicas)) != len(replicas):
        return f"includes a broker more than once: {', '.join(map(str, replicas))}"
    return None


def _check_assignment(
    draft: MetadataDraft, replicas: Sequence[BrokerId], factor: int | None, *, is_shared: bool
) -> None:
    reason = check_replicas(draft, replicas)
    if reason is None and is_shared:
        reason = shared_storage.check_assignment(draft, replicas)
    if reason is None and factor is not None and len(replicas) != factor:
        reason = f"has a partition with {len(replicas)} replica(s) where the others have {factor}"
    if reason:
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {reason}.")


def _check_limits(draft: MetadataDraft, name: str, *, before: int, after: int, rules: TopicRules) -> None:
    if after > rules.partitions_per_topic:
        raise ApiError(
            Code.INVALID_PARTITIONS,
            f"Topic '{name}' would have {after} partitions; "
            f"limits.partitions_per_topic allows {rules.partitions_per_topic}.",
        )
    total = draft.partition_count + after - before
    if total > rules.partitions:
        raise ApiError(
            Code.INVALID_PARTITIONS,
            f"The cluster would have {total} partitions; limits.partitions allows {rules.partitions}.",
        )
