"""Words for what consumer groups are told and write, and the topics of a story."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from penstock.cluster.metadata import INTERNAL_TOPICS, MetadataImage, PartitionImage, TopicImage
from penstock.errors import ProtocolError
from penstock.groups.consumer.assignment import Assignment, by_topic, flat
from penstock.groups.consumer.members import MemberState
from penstock.groups.consumer.records import (
    ConsumerRecord,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
)
from penstock.groups.consumer.state import ConsumerState
from penstock.ids import BrokerId, TopicId
from penstock.protocol.messages.consumer_protocol import ASSIGNMENT, ConsumerProtocolAssignment, TopicPartition
from penstock.protocol.versioned import peek_version


class Topics:
    """The topics of a story, and the image of them; a topic that is made again is another one."""

    def __init__(self) -> None:
        self._version = 0
        self._counts: dict[str, int] = {}
        self._ids: dict[str, TopicId] = {}
        self._names: dict[TopicId, str] = {}
        self.image = self._new_image()

    def set(self, name: str, partitions: int) -> None:
        """A partition count of 0 is a topic that is gone."""
        self._counts.pop(name, None)
        if partitions:
            self._counts[name] = partitions
            if name not in self._ids:
                self._ids[name] = uuid.UUID(int=len(self._names) + 1)
                self._names[self._ids[name]] = name
        else:
            self._ids.pop(name, None)
        self.image = self._new_image()

    def read(self, text: str) -> Assignment:
        """`orders/0,1;bills/2`, or nothing."""
        words = [word.partition("/") for word in text.split(";") if word]
        return flat((self._ids[name], map(int, indexes.split(","))) for name, _, indexes in words)

    def spell(self, assignment: Assignment) -> str:
        topics = by_topic(assignment).items()
        return ";".join(f"{self._names[topic_id]}/{_indexes(indexes)}" for topic_id, indexes in topics) or "nothing"

    def written(self, record: ConsumerRecord) -> str:
        """A record in words."""
        match record:
            case EpochRecord(group_id, epoch):
                return f"consumer group {group_id} is gone" if epoch is None else f"group epoch {epoch.number}"
            case TargetEpochRecord(_, number):
                return "targets are gone" if number is None else f"targets are those of epoch {number}"
            case MemberRecord(_, member_id, member):
                if member is None:
                    return f"member {member_id} is gone"
                wanted = [*member.topics, *([f"~{member.pattern}"] if member.pattern else [])]
                kind = "member" if member.classic is None else "classic member"
                return f"{kind} {member_id} reads {','.join(wanted) or 'nothing'}"
            case TargetRecord(_, member_id, target):
                return f"target of {member_id}: " + ("gone" if target is None else self.spell(target))
            case CurrentRecord(_, member_id, current):
                if current is None:
                    return f"{member_id} has nothing any more"
                state = "" if current.state is MemberState.STABLE else f", {current.state.name}"
                lets_go = f", lets go of {self.spell(current.revoking)}" if current.revoking else ""
                return f"{member_id} at epoch {current.epoch} has {self.spell(current.assigned)}{state}{lets_go}"

    def _new_image(self) -> MetadataImage:
        self._version += 1
        return image_of(self._counts, self._ids, self._version)


def image_of(counts: Mapping[str, int], ids: Mapping[str, TopicId], version: int) -> MetadataImage:
    me = BrokerId(1)
    topics = {
        name: TopicImage(
            name=name,
            id=ids[name],
            partitions=tuple(PartitionImage(index, me, 0, (me,), (me,)) for index in range(count)),
            is_internal=name in INTERNAL_TOPICS,
        )
        for name, count in counts.items()
    }
    return MetadataImage(
        version=version,
        cluster_id="",
        brokers={},
        controller=me,
        topics=topics,
        topic_names_by_id={topic.id: name for name, topic in topics.items()},
    )


def plan(text: str) -> bytes:
    """An assignment of the classic protocol: a consumer's if it names topics, otherwise just the text."""
    if "/" not in text:
        return text.encode()
    words = [word.partition("/") for word in text.split(";")]
    topics = tuple(TopicPartition(topic=name, partitions=tuple(map(int, found.split(",")))) for name, _, found in words)
    return ASSIGNMENT.encode(ConsumerProtocolAssignment(assigned_partitions=topics))


def spelled_plan(assignment: bytes) -> str:
    try:
        if not assignment or peek_version(assignment) > ASSIGNMENT.newest:
            return assignment.decode()
        topics = ASSIGNMENT.decode(assignment).assigned_partitions
    except ProtocolError:
        return assignment.decode()
    return ";".join(f"{found.topic}/{_indexes(found.partitions)}" for found in topics)


def durable(state: ConsumerState) -> tuple[object, ...]:
    numbers = (state.epoch, state.topics_hash, state.assignment_epoch, state.size)
    return (*numbers, state.members, state.currents, state.targets, state.static_ids)


def _indexes(indexes: tuple[int, ...]) -> str:
    return ",".join(map(str, indexes))
