"""Topics and their partitions: create, list, describe, grow, delete."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import TopicCollection
from confluent_kafka import TopicPartition as LibraryPartition
from confluent_kafka.admin import ClusterMetadata, NewPartitions, TopicMetadata
from confluent_kafka.admin import NewTopic as LibraryTopic

from penstock.admin.configs import ConfigOperations, ConfigResource, Configs
from penstock.admin.connection import AdminConnection, Deadline
from penstock.admin.errors import AdminError, admin_error
from penstock.admin.offsets import OffsetOperations
from penstock.admin.results import Page, Results
from penstock.errors import Code
from penstock.ids import TopicPartition

NO_LEADER = -1
"""Kafka's number for it."""

_INTERNAL_PREFIX = "__"
_VISIBLE_POLL_S = 0.05
_BROKER_DECIDES = -1
_MOST_BY_NAME = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create; what is None is decided by the broker."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    replica_assignment: Sequence[Sequence[int]] | None = None
    """The brokers of each partition, the preferred leader first; in place of the two counts."""
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition and its replicas, by the ids of brokers; the first replica is the preferred leader."""

    index: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    """On brokers that are not in the cluster now."""

    @property
    def is_under_replicated(self) -> bool:
        return any(broker not in self.isr for broker in self.replicas)

    @property
    def is_unavailable(self) -> bool:
        """Whether clients can neither read nor write it now."""
        return self.leader is None or self.leader in self.offline_replicas


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions, in order."""

    name: str
    partitions: tuple[PartitionDescription, ...]

    @property
    def is_internal(self) -> bool:
        """Whether brokers keep their own state in it."""
        return self.name.startswith(_INTERNAL_PREFIX)

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, partition.index) for partition in self.partitions]


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """Which topic has a name now, and how many partitions it has."""

    id: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """What a partition holds: `start` is its first offset, `end` one past its last; None if it has no leader, or its
    leader does not answer, and `error` says which.
    """

    partition: PartitionDescription
    start: int | None
    end: int | None
    error: AdminError | None = None


class TopicOperations:
    """Operations on topics."""

    def __init__(self, connection: AdminConnection, configs: ConfigOperations, offsets: OffsetOperations) -> None:
        self._connection = connection
        self._configs = configs
        self._offsets = offsets

    def list(self, *, include_internal: bool = False) -> tuple[TopicDescription, ...]:
        """All topics by name."""
        cluster = self._connection.metadata(self._connection.deadline())
        found = (_description(topic, cluster) for _, topic in sorted(cluster.topics.items()))
        return tuple(topic for topic in found if include_internal or not topic.is_internal)

    def describe(self, names: Iterable[str]) -> Results[str, TopicDescription]:
        """These topics; the error for one that does not exist names the nearest one that does."""
        return self._described(names, self._connection.deadline())

    def identify(self, names: Iterable[str]) -> Results[str, TopicIdentity]:
        """Which topics have these names now. A topic that is deleted and created again has another id."""
        deadline, wanted = self._connection.deadline(), sorted(set(names))
        if not wanted:
            return Results()
        asked = self._connection.send(
            lambda: self._connection.client.describe_topics(TopicCollection(wanted), request_timeout=deadline.left_s)
        )
        return self._connection.results(asked, deadline).map(
            lambda found: TopicIdentity(str(found.topic_id), len(found.partitions))
        )

    def configs(self, names: Iterable[str]) -> Results[str, Configs]:
        """The settings of topics, defaults included."""
        found = self._configs.describe(ConfigResource.topic(name) for name in names)
        return Results(
            {resource.name: configs for resource, configs in found.values.items()},
            {resource.name: error for resource, error in found.errors.items()},
        )

    def partitions(self, name: str, *, limit: int = 1000, after: str | None = None) -> Page[PartitionOffsets]:
        """The partitions of a topic with their offsets, in order."""
        topic = self.describe([name])[name]
        first = _index(after)
        chosen = topic.partitions[first : first + limit]
        # No broker answers for partitions without a leader; a request would wait until the timeout.
        led = [TopicPartition(name, partition.index) for partition in chosen if not partition.is_unavailable]
        starts, ends = self._offsets.earliest(led), self._offsets.latest(led)
        items = tuple(_partition_offsets(name, partition, starts, ends) for partition in chosen)
        return Page(items, str(first + limit) if first + limit < len(topic.partitions) else None)

    def create(self, topics: Iterable[NewTopic]) -> Results[str, TopicDescription]:
        """Creates topics and waits until all brokers show them; TOPIC_ALREADY_EXISTS for one that exists already."""
        deadline, wanted = self._connection.deadline(), {topic.name: topic for topic in topics}
        created: Results[str, Any] = Results()
        if wanted:
            asked = self._connection.send(
                lambda: self._connection.client.create_topics(
                    [_library_topic(topic) for topic in wanted.values()], request_timeout=deadline.left_s
                )
            )
            created = self._connection.results(asked, deadline)
        visible = self._visible(created.values, deadline)
        return Results(visible.values, {**created.errors, **visible.errors})

    def delete(self, names: Iterable[str]) -> Results[str, None]:
        """Deletes topics and everything in them."""
        deadline, wanted = self._connection.deadline(), list(dict.fromkeys(names))
        if not wanted:
            return Results()
        asked = self._connection.send(
            lambda: self._connection.client.delete_topics(wanted, request_timeout=deadline.left_s)
        )
        done = self._connection.results(asked, deadline)
        return Results(done.values, {name: _deletion_error(error) for name, error in done.errors.items()})

    def delete_records(self, before: Mapping[TopicPartition, int]) -> Results[TopicPartition, int]:
        """Deletes the records of partitions before an offset; gives the first offset that is left."""
        deadline = self._connection.deadline()
        if not before:
            return Results()
        wanted = [LibraryPartition(at.topic, at.partition, offset) for at, offset in before.items()]
        asked = self._connection.send(
            lambda: self._connection.client.delete_records(wanted, request_timeout=deadline.left_s)
        )
        futures = {TopicPartition(at.topic, at.partition): future for at, future in asked.items()}
        return self._connection.results(futures, deadline).map(lambda done: int(done.low_watermark))

    def add_partitions(self, totals: Mapping[str, int]) -> Results[str, None]:
        """Gives topics more partitions, up to a total. Records of one key may go to another partition from then on."""
        deadline = self._connection.deadline()
        if not totals:
            return Results()
        asked = self._connection.send(
            lambda: self._connection.client.create_partitions(
                [NewPartitions(name, total) for name, total in totals.items()], request_timeout=deadline.left_s
            )
        )
        return self._connection.results(asked, deadline)

    def _visible(self, names: Iterable[str], deadline: Deadline) -> Results[str, TopicDescription]:
        """Topics that exist, as soon as every broker knows them: whichever is asked for them next."""
        # It brings the protocol's messages with it, which the many who create nothing do without.
        from penstock.admin.topic_propagation import is_known_everywhere

        wanted = list(names)
        while wanted:
            found = self._described(wanted, deadline)
            is_visible = not found.errors and is_known_everywhere(self._connection, wanted, deadline)
            if is_visible or deadline.is_over:
                return found
            time.sleep(_VISIBLE_POLL_S)
        return Results()

    def _described(self, names: Iterable[str], deadline: Deadline) -> Results[str, TopicDescription]:
        """Requests a few topics by name, one after the other: the metadata of all topics grows with the cluster."""
        wanted = list(dict.fromkeys(names))
        whole = self._connection.metadata(deadline) if len(wanted) > _MOST_BY_NAME else None
        values: dict[str, TopicDescription] = {}
        errors: dict[str, AdminError] = {}
        missing: list[str] = []
        for name in wanted:
            if whole is not None:
                cluster, found = whole, whole.topics.get(name)
            else:
                cluster, found = self._connection.topic_metadata(name, deadline)
            if found is None:
                missing.append(name)
            elif found.error is not None:
                errors[name] = admin_error(found.error)
            else:
                values[name] = _description(found, cluster)
        if missing:
            known = (whole or self._connection.metadata(deadline)).topics
            errors |= {name: no_topic(name, known) for name in missing}
        return Results(values, errors)


def no_topic(name: str, known: Iterable[str]) -> AdminError:
    """The error for a topic that does not exist."""
    return AdminError(Code.UNKNOWN_TOPIC_OR_PARTITION.name, f"there is no topic {name}{did_you_mean(name, known)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest known name; empty if none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _description(topic: TopicMetadata, cluster: ClusterMetadata) -> TopicDescription:
    return TopicDescription(
        str(topic.topic),
        tuple(
            PartitionDescription(
                index=index,
                leader=None if found.leader == NO_LEADER else found.leader,
                replicas=tuple(found.replicas),
                isr=tuple(broker for broker in found.replicas if broker in found.isrs),
                offline_replicas=tuple(broker for broker in found.replicas if broker not in cluster.brokers),
            )
            for index, found in sorted(topic.partitions.items())
        ),
    )


def _partition_offsets(
    topic: str,
    partition: PartitionDescription,
    starts: Results[TopicPartition, int],
    ends: Results[TopicPartition, int],
) -> PartitionOffsets:
    if partition.is_unavailable:
        return PartitionOffsets(partition, None, None, AdminError(Code.LEADER_NOT_AVAILABLE.name, "it has no leader"))
    at = TopicPartition(topic, partition.index)
    error = starts.errors.get(at) or ends.errors.get(at)
    return PartitionOffsets(partition, starts.values.get(at), ends.values.get(at), error)


def _library_topic(topic: NewTopic) -> LibraryTopic:
    configs = dict(topic.configs)
    if topic.replica_assignment is not None:
        placed = [list(brokers) for brokers in topic.replica_assignment]
        return LibraryTopic(topic.name, len(placed), replica_assignment=placed, config=configs)
    return LibraryTopic(
        topic.name,
        num_partitions=topic.partitions or _BROKER_DECIDES,
        replication_factor=topic.replication_factor or _BROKER_DECIDES,
        config=configs,
    )


def _deletion_error(error: AdminError) -> AdminError:
    # The client library asks for a version of the response that has no message of the broker.
    if error.code == Code.POLICY_VIOLATION.name:
        return AdminError(error.code, "it has views; delete them first, or together with it")
    return error


def _index(after: str | None) -> int:
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit()):
        raise AdminError(Code.INVALID_REQUEST.name, f"{after!r} does not continue a list of partitions")
    return int(after)
