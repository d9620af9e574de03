"""Offsets for `penstock group`: what was committed, where partitions begin and end, where a group shall go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli.client import TIMEOUT_S, saying, topic_of
from penstock.cli.failure import CommandError
from penstock.cli.positions import At, Position, first_offset
from penstock.groups.reset import RESET_MARK

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Shift:
    """So many messages further, or back if negative."""

    by: int


Target = Position | Shift


class Span(NamedTuple):
    """The offsets that a partition holds: from the first up to, without, the second."""

    low: int
    high: int


def parse_places(texts: Iterable[str], cluster: ClusterMetadata) -> list[Place]:
    """TOPIC or TOPIC:0,2 as partitions that exist; names themselves have no colon."""
    places: dict[Place, None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        known = sorted(topic_of(cluster, topic).partitions)
        wanted = [word.strip() for word in numbers.split(",")] if colon else [str(number) for number in known]
        for word in wanted:
            if not word.isdecimal() or int(word) not in known:
                raise CommandError(f"topic {topic} has no partition {word or '(empty)'}: they go from 0 to {known[-1]}")
            places[Place(topic, int(word))] = None
    return list(places)


def committed(client: AdminClient, group: str) -> dict[Place, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    with saying(f"the offsets of group {group} cannot be read"):
        asked = [ConsumerGroupTopicPartitions(group)]
        answer = client.list_consumer_group_offsets(asked, request_timeout=TIMEOUT_S)[group].result()
    found = {Place(each.topic, each.partition): each.offset for each in answer.topic_partitions if each.offset >= 0}
    return dict(sorted(found.items()))


def spans(client: AdminClient, places: Iterable[Place]) -> dict[Place, Span]:
    """What partitions hold; those of topics that are gone are left out."""
    from confluent_kafka.admin import OffsetSpec

    wanted = list(places)
    lows = _listed(client, wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    highs = _listed(client, wanted, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return {place: Span(lows[place], highs[place]) for place in wanted if place in lows and place in highs}


def since(client: AdminClient, places: Iterable[Place], time_ms: int) -> dict[Place, int]:
    """The first offset of this time or later, where there is one."""
    from confluent_kafka.admin import OffsetSpec

    found = _listed(client, places, OffsetSpec.for_timestamp(time_ms))
    return {place: offset for place, offset in found.items() if offset >= 0}


def _listed(client: AdminClient, places: Iterable[Place], which: Any) -> dict[Place, int]:
    from confluent_kafka import TopicPartition

    from penstock.sdk.positions import positions

    asked = {TopicPartition(place.topic, place.partition): which for place in places}
    found = positions(client, asked, TIMEOUT_S).offsets
    return {Place(place.topic, place.partition): offset for place, offset in found.items()}


def new_offset(target: Target, before: int | None, span: Span, since: int | None) -> int:
    """Where a group shall go on; always an offset that the partition holds, or its end.

    `since` is the broker's answer where the target is a time.
    """
    if isinstance(target, Shift):
        if before is None:
            raise ValueError("has no committed offset to shift")
        # Not a Position of its own: an offset below 0 must end at the beginning too.
        return min(max(before + target.by, span.low), span.high)
    if isinstance(target, At) and target.offset > span.high:
        raise ValueError(f"ends at {span.high}, before offset {target.offset}")
    return first_offset(target, span.low, span.high, since)


def alter(client: AdminClient, group: str, offsets: Mapping[Place, int]) -> None:
    """Sets offsets, whether the group has members or not: those who are there then are put out."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wanted = [
        TopicPartition(place.topic, place.partition, offset, metadata=RESET_MARK) for place, offset in offsets.items()
    ]
    with saying(f"the offsets of group {group} were not changed"):
        asked = [ConsumerGroupTopicPartitions(group, wanted)]
        answer = client.alter_consumer_group_offsets(asked, request_timeout=TIMEOUT_S)[group].result()
    for found in answer.topic_partitions:
        if found.error is not None:
            raise CommandError(f"{found.topic}-{found.partition} of group {group} was not changed: {found.error.str()}")
