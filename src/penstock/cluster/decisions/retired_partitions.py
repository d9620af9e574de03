"""Decisions about retired partitions: which may be, who takes their place, when they go.

`docs/internals/retiring.md` says why.

Pure. A partition is retired by a pair of the topic's setting `penstock.partitions.retired`. Clients choose the pairs
(`admin/retirement.py`), and `check_change` checks them. A partition is gone when the topic no longer has it; its pair
stays, so that what is still sent to it is known to belong to its successor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from penstock.cluster.metadata import MetadataImage, PartitionImage, TopicImage
from penstock.config.retired import RETIRED_SETTING, check_tail, parse_retired, spell_retired
from penstock.errors import ApiError, Code, ConfigError
from penstock.ids import BrokerId, TopicPartition

_NO_PARTITIONS: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a retired partition."""

    start_offset: int
    end_offset: int
    has_open_transaction: bool
    # Groups that have committed an offset and have something left to read.
    unread_by: Collection[str]


def successors(topic: TopicImage) -> Mapping[int, int]:
    """The successor of each retired partition of a topic, gone or not."""
    text = topic.overrides.get(RETIRED_SETTING)
    return parse_retired(item.strip() for item in text.split(",")) if text else _NO_PARTITIONS


def has_retired(topic: TopicImage) -> bool:
    """Whether a topic has retired partitions that are not gone."""
    return len(topic.partitions) - 1 in successors(topic)


def is_writable(topic: TopicImage, index: int) -> bool:
    """Whether a producer may send to this partition: it exists, or a successor takes its place."""
    return 0 <= index < len(topic.partitions) or index in successors(topic)


def successor_of_gone(image: MetadataImage, at: TopicPartition) -> int | None:
    """The partition that takes messages for a partition that its topic no longer has."""
    topic = image.topics.get(at.topic)
    return None if topic is None or at.partition < len(topic.partitions) else successors(topic).get(at.partition)


def partitions_gone(old: MetadataImage, new: MetadataImage, topics: Collection[str]) -> frozenset[TopicPartition]:
    """The partitions that a change of the metadata has removed: all those of `topics`, and the last of others."""
    gone: set[TopicPartition] = set()
    for name in old.topics:
        before, after = old.seen(name), new.seen(name)
        remaining = 0 if after is None or name in topics else len(after.partitions)
        gone.update(TopicPartition(name, index) for index in range(remaining, len(before.partitions) if before else 0))
    return frozenset(gone)


def seen_of_gone(topic: TopicImage) -> Sequence[PartitionImage]:
    """The partitions that are gone, each as if it were led where its successor is, in no epoch of its own."""
    pairs, index = successors(topic), len(topic.partitions)
    seen = []
    while index in pairs:
        seen.append(replace(topic.partitions[pairs[index]], index=index, leader_epoch=-1))
        index += 1
    return seen


def led_partition(topic: TopicImage, index: int) -> PartitionImage | None:
    """The partition whose leader deals with what is meant for `index`: itself or, if it is gone, its successor."""
    if not 0 <= index < len(topic.partitions):
        index = successors(topic).get(index, -1)
    return topic.partitions[index] if 0 <= index < len(topic.partitions) else None


def together(
    topic: TopicImage, alive: Collection[BrokerId], with_database_key: Collection[BrokerId] = ()
) -> TopicImage:
    """The topic with each retired partition led by the leader of its successor, where that broker has all of it. In
    shared storage that is every broker that reaches its database.

    Its replicas come in the order of the successor's, if they are the same ones: both then prefer the same leader.
    """
    partitions = list(topic.partitions)
    for index, successor in successors(topic).items():
        if index >= len(partitions):
            continue
        before, other = partitions[index], partitions[successor]
        if topic.is_shared:
            reaches = not before.needs_database_key or other.leader in with_database_key
            if other.leader != before.leader and other.leader in alive and reaches:
                partitions[index] = before.handed_to(other.leader)
            continue
        after = before
        if not before.is_moving and not other.is_moving and set(before.replicas) == set(other.replicas):
            after = replace(after, replicas=other.replicas)
        leader = other.leader
        if leader != before.leader and leader in before.in_sync and leader in alive:
            after = replace(after, leader=leader, leader_epoch=before.leader_epoch + 1)
        partitions[index] = after
    return topic if tuple(partitions) == topic.partitions else replace(topic, partitions=tuple(partitions))


def apart(topic: TopicImage) -> Mapping[int, tuple[BrokerId, ...]]:
    """The retired partitions that are not where their successors are, and where they have to go."""
    pairs = successors(topic)
    return {
        index: topic.partitions[successor].target
        for index, successor in pairs.items()
        if index < len(topic.partitions)
        and set(topic.partitions[index].target) != set(topic.partitions[successor].target)
    }


def check_change(topic: TopicImage, overrides: Mapping[str, str]) -> None:
    """Refuses new overrides that retire what cannot be retired, or take a retirement back."""
    before, after = successors(topic), successors(replace(topic, overrides=overrides))
    if before == after:
        return
    count = len(topic.partitions)
    if topic.is_internal:
        raise _refused(f"{topic.name} is written by brokers alone")
    for index, successor in before.items():
        if index < count and after.get(index) != successor:
            raise _refused(f"partition {index} is retired in favour of {successor}, which cannot be changed any more")
    if new_gone := [index for index in after if index >= count and index not in before]:
        raise _refused(f"there is no partition {min(new_gone)}")
    if far := [successor for successor in after.values() if successor >= count]:
        raise _refused(f"there is no partition {far[0]}")
    try:
        check_tail(count, [index for index in after if index < count])
    except ConfigError as error:
        raise _refused(str(error)) from error


def check_growth(topic: TopicImage) -> None:
    """Refuses new partitions behind retired ones, which would then never be the last."""
    retired = [index for index in successors(topic) if index < len(topic.partitions)]
    if retired:
        raise ApiError(
            Code.INVALID_PARTITIONS,
            f"Topic '{topic.name}' has retired partitions ({_listed(retired)}); it can grow when they are gone.",
        )


def grown(topic: TopicImage) -> TopicImage:
    """The topic after it has grown: what is there again is not retired."""
    before = successors(topic)
    return _with(topic, {index: each for index, each in before.items() if index >= len(topic.partitions)})


def may_go(topic: TopicImage, index: int, remains: Remains) -> bool:
    """Whether a retired partition can be taken out of the topic: clients know partitions by their number and take
    them to have no gaps, so only the last one can.
    """
    return (
        index == len(topic.partitions) - 1
        and index in successors(topic)
        and remains.start_offset == remains.end_offset
        and not remains.has_open_transaction
        and not remains.unread_by
    )


def without_last(topic: TopicImage) -> TopicImage:
    """The topic without its last partition; its pair stays.

    In shared storage its log may outlive it, if that is away. A partition of that number that is made later has to
    begin in a higher epoch (`shared_storage.first_epoch`), so the highest one goes to the successor.
    """
    last, pairs = topic.partitions[-1], successors(topic)
    assert last.index in pairs
    partitions = list(topic.partitions[:-1])
    if topic.is_shared and all(last.leader_epoch > other.leader_epoch for other in partitions):
        successor = pairs[last.index]
        partitions[successor] = replace(partitions[successor], leader_epoch=last.leader_epoch)
    return replace(topic, partitions=tuple(partitions))


def _with(topic: TopicImage, pairs: Mapping[int, int]) -> TopicImage:
    overrides = {name: value for name, value in topic.overrides.items() if name != RETIRED_SETTING}
    if pairs:
        overrides[RETIRED_SETTING] = spell_retired(pairs)
    return replace(topic, overrides=MappingProxyType(overrides))


def _listed(indexes: Collection[int]) -> str:
    return ", ".join(map(str, sorted(indexes)))


def _refused(reason: str) -> ApiError:
    return ApiError(Code.INVALID_CONFIG, f"{RETIRED_SETTING}: {reason}")
