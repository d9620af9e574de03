"""Commits that come again and again: the same group commits the same partitions, without metadata.

What is looked up, made and answered is the same each time. It is made once, and what depends on the metadata is looked
up anew when that has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.broker.requests.accepted_commit import AcceptedCommit
from penstock.cluster.metadata import MetadataImage
from penstock.groups.commits import Commit, CommitShape
from penstock.groups.records import shape_of
from penstock.ids import TopicPartition
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.protocol.packed_commit import PackedTopic

_PLACES_KEPT = 200_000
"""Partitions of all shapes that are kept, about 300 bytes each."""
_EACH = 10
"""What a shape itself takes counts as so many partitions."""
_BATCH_BYTES = 1 << 19
"""The records of a larger commit may need several batches: they are made one by one."""

Find = Callable[[OffsetCommitRequestTopic, int], tuple[str, int]]
"""The name of a topic, and how many partitions it has, as a version of the request names it."""

_Key = tuple[str, int, tuple[tuple[bytes, bytes], ...]]
"""Group, version, and of each topic its name or id and its partitions, as they came."""


class PlainCommit(NamedTuple):
    """A commit of partitions that there are, and the answer if all of it is accepted."""

    commit: Commit
    accepted: AcceptedCommit


@dataclass(slots=True)
class _Kept:
    shape: CommitShape
    accepted: AcceptedCommit
    topics: tuple[tuple[str, int], ...]
    """The name of each, and how many partitions it must have."""
    image: MetadataImage
    """It has all of them."""


class RepeatedCommits:
    """Finds the shape of a commit by the bytes that name its partitions; those used last are kept."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._places = 0
        """Of all that are kept, and `_EACH` for each of them."""

    def plain(
        self, request: OffsetCommitRequest, version: int, image: MetadataImage, now_ms: int
    ) -> PlainCommit | None:
        """The commit that a request asks for; None if it has to be looked at partition by partition."""
        topics = request.topics
        key = []
        positions: list[bytes] = []
        for topic in topics:
            if type(topic) is not PackedTopic:
                return None
            key.append((topic.key, topic.places))
            positions.extend(topic.positions)
        if not positions:
            return None
        place = (request.group_id, version, tuple(key))
        kept = self._kept.get(place)
        if kept is None or (kept.image is not image and not self._is_still_there(kept, request, version)):
            kept = self._make(request, version, image)
            if kept is None:
                return None
            self._keep(place, kept)
        else:
            self._kept.move_to_end(place)
            kept.image = image
        return PlainCommit(Commit(kept.shape, positions, now_ms), kept.accepted)

    def _is_still_there(self, kept: _Kept, request: OffsetCommitRequest, version: int) -> bool:
        for topic, (name, partitions) in zip(request.topics, kept.topics, strict=True):
            found, count = self._find(topic, version)
            if found != name or count < partitions:
                return False
        return True

    def _make(self, request: OffsetCommitRequest, version: int, image: MetadataImage) -> _Kept | None:
        places: list[TopicPartition] = []
        topics: list[tuple[str, int]] = []
        for topic in request.topics:
            name, count = self._find(topic, version)
            indexes = [each.partition_index for each in topic.partitions]
            if indexes and not 0 <= min(indexes) <= max(indexes) < count:
                return None
            places += [TopicPartition(name, index) for index in indexes]
            topics.append((name, max(indexes, default=-1) + 1))
        shape = shape_of(request.group_id, places)
        if len(shape.accepted) < len(places) or sum(map(len, shape.record_heads)) > _BATCH_BYTES:
            return None
        answered = tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=each.partition_index) for each in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return _Kept(shape, AcceptedCommit(topics=answered), tuple(topics), image)

    def _keep(self, place: _Key, kept: _Kept) -> None:
        before = self._kept.pop(place, None)
        if before is not None:
            self._places -= _weight(before)
        self._kept[place] = kept
        self._places += _weight(kept)
        while self._places > _PLACES_KEPT:
            _, oldest = self._kept.popitem(last=False)
            self._places -= _weight(oldest)


def _weight(kept: _Kept) -> int:
    return _EACH + len(kept.shape.places)
