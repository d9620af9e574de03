"""Commits of the same partitions share their shape and their answer as long as the metadata says the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.broker.handlers import repeated_commits
from penstock.broker.handlers.repeated_commits import PlainCommit, RepeatedCommits
from penstock.cluster.image_reader import empty_image
from penstock.protocol import packed_commit
from penstock.protocol.decoding import NO_LIMIT
from penstock.protocol.encoding import encode
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

IMAGE = empty_image("cluster")
VERSION = 9


class Known:
    """Topics by name."""

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions
        self.looks = 0

    def find(self, topic: OffsetCommitRequestTopic, version: int) -> tuple[str, int]:
        self.looks += 1
        return topic.name, self.partitions.get(topic.name, 0)


def request(group: str = "g", topic: str = "t", partitions: int = 3, offset: int = 0) -> OffsetCommitRequest:
    found = tuple(
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index in range(partitions)
    )
    message = OffsetCommitRequest(group_id=group, topics=(OffsetCommitRequestTopic(name=topic, partitions=found),))
    packed = packed_commit.decode(VERSION, memoryview(encode(message, VERSION)), 0, NO_LIMIT)
    assert packed is not None
    return packed


def made(commits: RepeatedCommits, wanted: OffsetCommitRequest, image: object = IMAGE) -> PlainCommit:
    found = commits.plain(wanted, VERSION, image, 5)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_the_same_partitions_are_looked_up_once() -> None:
    known = Known(t=3)
    commits = RepeatedCommits(known.find)
    first, second = (made(commits, request(offset=offset)) for offset in (1, 2))
    assert first.commit.shape is second.commit.shape
    assert first.accepted is second.accepted
    assert [each.offset for each in second.commit.values()] == [2, 2, 2]
    assert known.looks == 1


@pytest.mark.parametrize("other", [{"group": "h"}, {"topic": "u"}, {"partitions": 2}])
def test_other_partitions_or_another_group_are_another_shape(other: dict[str, str]) -> None:
    commits = RepeatedCommits(Known(t=3, u=3).find)
    assert made(commits, request()).commit.shape is not made(commits, request(**other)).commit.shape  # type: ignore[arg-type]


def test_new_metadata_is_looked_at() -> None:
    known = Known(t=3)
    commits = RepeatedCommits(known.find)
    before = made(commits, request())
    newer = replace(IMAGE, version=7)
    assert made(commits, request(), newer).commit.shape is before.commit.shape
    assert known.looks == 2
    known.partitions["t"] = 2
    assert commits.plain(request(), VERSION, replace(IMAGE, version=8), 5) is None


def test_what_is_not_there_or_is_named_twice_is_looked_at_partition_by_partition() -> None:
    commits = RepeatedCommits(Known(t=3).find)
    assert commits.plain(request(partitions=4), VERSION, IMAGE, 5) is None
    assert commits.plain(request(topic="u"), VERSION, IMAGE, 5) is None
    twice = request()
    assert commits.plain(replace(twice, topics=(*twice.topics, *twice.topics)), VERSION, IMAGE, 5) is None
    assert commits.plain(replace(twice, topics=()), VERSION, IMAGE, 5) is None


def test_only_those_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_commits, "_PLACES_KEPT", 3 * (3 + 10))
    commits = RepeatedCommits(Known(t=3).find)
    shapes = {group: made(commits, request(group)).commit.shape for group in "abc"}
    assert made(commits, request("a")).commit.shape is shapes["a"]
    made(commits, request("d"))
    assert made(commits, request("a")).commit.shape is shapes["a"]
    assert made(commits, request("c")).commit.shape is shapes["c"]
    assert made(commits, request("b")).commit.shape is not shapes["b"]
