"""A group as rows of the metadata tables. Pure.

What a client has chosen freely may not fit: a member or a topic whose name cannot be a key in all databases is left
out, and other texts are cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.cluster.metadata import MetadataImage
from penstock.errors import ProtocolError
from penstock.groups import group_types
from penstock.groups.classic.group import ClassicGroup, GroupState
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.group_types import Group
from penstock.groups.offsets import Committed
from penstock.ids import BrokerId, TopicPartition
from penstock.protocol.messages.consumer_protocol import ASSIGNMENT, PROTOCOL_TYPE
from penstock.sql.dialects.dialect import Row
from penstock.storage.sql.metadata_tables import (
    CONSUMER,
    CONSUMER_GROUP,
    CONSUMER_GROUP_CONSUMER,
    CONSUMER_GROUP_TOPIC,
    MAX_TEXT,
    QUEUE_OFFSET,
    Table,
)
from penstock.storage.sql.offset_table import can_show


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of either type of group."""

    id: str
    client_id: str
    instance_id: str | None
    host: str
    generation: int
    assigned: frozenset[TopicPartition] = field(default_factory=frozenset)


def rows_of(
    group_id: str,
    group: Group | None,
    committed: Mapping[TopicPartition, Committed],
    image: MetadataImage,
    coordinator: BrokerId,
    now_ms: int,
) -> dict[Table, list[Row]]:
    """All rows of a group; a group that is None has offsets and nothing else, or there is no such group."""
    if group is None and not committed:
        return {}
    members = [member for member in _members(group, image) if can_show(member.id)]
    consumer_at = {at: member.id for member in members for at in member.assigned}
    return {
        CONSUMER_GROUP: [_group_row(group_id, group, image, coordinator)],
        CONSUMER: [
            (
                group_id,
                member.id,
                _cut(member.client_id),
                None if member.instance_id is None else _cut(member.instance_id),
                _cut(member.host),
                now_ms,
            )
            for member in members
        ],
        CONSUMER_GROUP_CONSUMER: [(group_id, member.id, member.generation, len(member.assigned)) for member in members],
        CONSUMER_GROUP_TOPIC: _topic_rows(group_id, group, committed, image),
        QUEUE_OFFSET: [
            (group_id, *at, committed[at].offset if at in committed else None, consumer_at.get(at))
            for at in committed.keys() | consumer_at.keys()
            if can_show(at.topic)
        ],
    }


def _group_row(group_id: str, group: Group | None, image: MetadataImage, coordinator: BrokerId) -> Row:
    settings = json.dumps(dict(image.settings_by_group.get(group_id, {})), sort_keys=True)
    if group is None:
        return (group_id, "classic", "", GroupState.EMPTY.value, 0, None, 0, coordinator, settings)
    if isinstance(group, ConsumerGroup):
        generation, assignor = group.state.epoch, group.assignor if group.members else None
    else:
        generation, assignor = group.generation.number, group.generation.protocol
    return (
        group_id,
        group_types.kind(group),
        _cut(group_types.protocol_type(group)),
        group_types.state_name(group),
        generation,
        None if assignor is None else _cut(assignor),
        len(group.members),
        coordinator,
        settings,
    )


def _members(group: Group | None, image: MetadataImage) -> list[_Member]:
    if isinstance(group, ConsumerGroup):
        return _consumer_members(group, image)
    return [] if group is None else _classic_members(group, image)


def _consumer_members(group: ConsumerGroup, image: MetadataImage) -> list[_Member]:
    names = image.topic_names_by_id
    members = []
    for member in group.members.values():
        current = group.state.current_of(member.member_id)
        # What it has to let go of it reads until it says that it has.
        assigned = frozenset(
            TopicPartition(names[topic_id], index)
            for topic_id, index in current.assigned | current.revoking
            if topic_id in names
        )
        members.append(
            _Member(member.member_id, member.client_id, member.instance_id, member.client_host, current.epoch, assigned)
        )
    return members


def _classic_members(group: ClassicGroup, image: MetadataImage) -> list[_Member]:
    """While a group rebalances it is not known which member still reads what."""
    is_known = group.state is GroupState.STABLE and group.generation.protocol_type == PROTOCOL_TYPE
    return [
        _Member(
            member.member_id,
            member.client_id,
            member.instance_id,
            member.client_host,
            group.generation.number,
            _decoded(group.generation.withheld.without(member.assignment), image) if is_known else frozenset(),
        )
        for member in group.members.values()
    ]


def _decoded(assignment: bytes, image: MetadataImage) -> frozenset[TopicPartition]:
    """The partitions that a leader has assigned, as far as they exist."""
    try:
        topics = ASSIGNMENT.decode(assignment).assigned_partitions if assignment else ()
    except ProtocolError:
        return frozenset()
    found = set()
    for each in topics:
        topic = image.seen(each.topic)
        if topic is not None:
            found |= {TopicPartition(topic.name, index) for index in each.partitions if index < len(topic.partitions)}
    return frozenset(found)


def _topic_rows(
    group_id: str, group: Group | None, committed: Mapping[TopicPartition, Committed], image: MetadataImage
) -> list[Row]:
    subscribed = frozenset() if group is None else group_types.subscribed(group, image) or frozenset()
    topics = subscribed | {at.topic for at in committed}
    return [(group_id, topic, int(topic in subscribed)) for topic in topics if can_show(topic)]


def _cut(text: str) -> str:
    return text.replace("\0", "")[:MAX_TEXT]
