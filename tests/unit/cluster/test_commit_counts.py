"""What is counted of commits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.cluster.commit_counts import CommitCounts
from penstock.cluster.metadata import NO_LEADER, PartitionImage, TopicImage
from penstock.ids import BrokerId, new_topic_id


def partition(leader: int, replicas: str, in_sync: str) -> PartitionImage:
    def brokers(text: str) -> tuple[BrokerId, ...]:
        return tuple(BrokerId(int(number)) for number in text)

    return PartitionImage(0, BrokerId(leader), 0, brokers(replicas), brokers(in_sync))


def counted(before: PartitionImage, after: PartitionImage) -> tuple[int, int, int, int]:
    """Elections, unclean ones, shrinks, expands."""
    topic = TopicImage("orders", new_topic_id(), (before,))
    changed = replace(topic, partitions=(after,))
    counts = CommitCounts()
    counts.note({"orders": topic}, {"orders": changed}, ["orders"])
    return counts.leader_elections, counts.unclean_leader_elections, counts.isr_shrinks, counts.isr_expands


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1, "123", "123"), (1, "123", "123"), (0, 0, 0, 0)),
        # A follower falls behind, and comes back.
        ((1, "123", "123"), (1, "123", "13"), (0, 0, 1, 0)),
        ((1, "123", "13"), (1, "123", "123"), (0, 0, 0, 1)),
        ((1, "123", "12"), (1, "123", "13"), (0, 0, 1, 1)),
        # A leader dies: another is elected, or nobody.
        ((1, "123", "123"), (2, "123", "23"), (1, 0, 1, 0)),
        ((1, "1", "1"), (NO_LEADER, "1", "1"), (0, 0, 0, 0)),
        ((NO_LEADER, "1", "1"), (1, "1", "1"), (1, 0, 0, 0)),
        # Nobody who was in sync is there.
        ((NO_LEADER, "12", "1"), (2, "12", "2"), (1, 1, 1, 1)),
        # A move: the removed replica has not fallen behind.
        ((1, "123", "123"), (1, "13", "13"), (0, 0, 0, 0)),
    ],
)
def test_leaders_and_in_sync_sets_are_counted(
    before: tuple[int, str, str], after: tuple[int, str, str], expected: tuple[int, int, int, int]
) -> None:
    assert counted(partition(*before), partition(*after)) == expected


def test_a_topic_that_is_new_or_gone_or_another_under_its_name_has_had_no_election() -> None:
    one = TopicImage("orders", new_topic_id(), (partition(1, "12", "12"),))
    other = TopicImage("orders", new_topic_id(), (partition(2, "12", "2"),))
    counts = CommitCounts()
    counts.note({}, {"orders": one}, ["orders"])
    counts.note({"orders": one}, {}, ["orders"])
    counts.note({"orders": one}, {"orders": other}, ["orders"])
    assert vars(counts) == dict.fromkeys(vars(counts), 0)
