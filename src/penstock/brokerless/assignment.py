"""Which partitions a member of a group should claim, and which it should give back. Pure.

There is no leader: each member decides for itself from what it sees of the group, and claims keep two members off one
partition whatever they decide. Members that see the same decide the same, so a group comes to rest as soon as no member
joins or leaves.

Each topic is shared among the members that subscribe to it, evenly and by itself: a member gets its share of a topic
and its share of the topic's retries. A member keeps what it has as long as that is not more than its share.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.brokerless.store import GroupClaims
from penstock.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Decision:
    """What a member does next."""

    claim: frozenset[TopicPartition]
    """Partitions that should be this member's, and that no member has."""
    release: frozenset[TopicPartition]
    """Partitions that this member has and another one should get."""


def decide(member: str, state: GroupClaims, partitions: Mapping[str, int]) -> Decision:
    """What a member should do; `partitions` has the size of each topic that it knows."""
    claim: set[TopicPartition] = set()
    release: set[TopicPartition] = set()
    for topic, count in partitions.items():
        wanted = share_topic(topic, count, state)
        for tp in (TopicPartition(topic, number) for number in range(count)):
            held_by = state.claims.get(tp)
            if held_by is None and wanted.get(tp) == member:
                claim.add(tp)
            elif held_by is not None and held_by.member == member and wanted.get(tp) != member:
                release.add(tp)
    gone = {tp for tp, held_by in state.claims.items() if held_by.member == member and not _exists(tp, partitions)}
    return Decision(frozenset(claim), frozenset(release | gone))


def share_topic(topic: str, count: int, state: GroupClaims) -> Mapping[TopicPartition, str]:
    """The member that each partition of a topic should be with."""
    members = sorted(member.name for member in state.members if topic in member.topics)
    if not members:
        return {}
    # Start at another member for each topic, or the first member would always get the extra partitions.
    turn = zlib.crc32(topic.encode()) % len(members)
    members = members[turn:] + members[:turn]
    least, more = divmod(count, len(members))
    held = {
        name: [
            tp
            for tp in (TopicPartition(topic, number) for number in range(count))
            if (claim := state.claims.get(tp)) is not None and claim.member == name
        ]
        for name in members
    }
    # The larger shares go to those that have them already: fewer partitions move.
    order = sorted(members, key=lambda name: (-min(len(held[name]), least + 1), members.index(name)))
    size = {name: least + (place < more) for place, name in enumerate(order)}
    shares = {tp: name for name in members for tp in held[name][: size[name]]}
    room = [name for name in members for _ in range(size[name] - len(held[name][: size[name]]))]
    free = (tp for number in range(count) if (tp := TopicPartition(topic, number)) not in shares)
    return shares | dict(zip(free, room, strict=True))


def _exists(tp: TopicPartition, partitions: Mapping[str, int]) -> bool:
    return tp.partition < partitions.get(tp.topic, 0)
