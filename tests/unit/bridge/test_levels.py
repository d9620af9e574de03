"""Levels: what people write, and which messages of a batch are due."""

from __future__ import annotations

import pytest

from penstock.bridge.levels import AHEAD_MS, MOST_LEVELS, parse_partition_levels, split_by_due_time
from penstock.errors import ConfigError
from penstock.ids import TopicPartition
from penstock.sdk.ports import Received

MINUTE = 60_000
NOW = 1_700_000_000_000


def message(partition: int, offset: int, timestamp_ms: int | None) -> Received:
    return Received("delay", partition, offset, b"", timestamp_ms=timestamp_ms)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("5", [1, 3, 5, 10, 30]),
        ("10", [1, 3, 5, 10, 15, 30, 60, 90, 120, 180]),
        ("1m, 3m*2,10m", [1, 3, 3, 10]),
        ("0s", [0]),
    ],
)
def test_levels_are_presets_or_durations_each_for_one_partition_or_more(text: str, minutes: list[int]) -> None:
    assert parse_partition_levels(text) == tuple(minute * MINUTE for minute in minutes)


@pytest.mark.parametrize("text", ["", "1m,", "soon", "3m*0", "3m*", "-1s", f"1s*{MOST_LEVELS},1s"])
def test_other_levels_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="levels:"):
        parse_partition_levels(text)


def test_a_partition_is_split_at_the_first_message_that_is_not_due() -> None:
    messages = [
        message(0, 5, NOW - 2 * MINUTE),
        message(1, 7, NOW - 3 * MINUTE),
        message(0, 6, NOW - MINUTE + 1),
        # Due, but behind one that is not.
        message(0, 8, NOW - 2 * MINUTE),
        message(1, 8, NOW - 3 * MINUTE + 500),
    ]
    batch = split_by_due_time(messages, [MINUTE, 3 * MINUTE], NOW)
    assert [(each.partition, each.offset) for each in batch.due] == [(0, 5), (1, 7)]
    assert batch.waits == {TopicPartition("delay", 0): (6, NOW + 1), TopicPartition("delay", 1): (8, NOW + 500)}
    assert not batch.rejected


def test_what_would_block_its_partition_is_rejected() -> None:
    messages = [message(0, 0, NOW + AHEAD_MS + 1), message(0, 1, NOW + AHEAD_MS), message(3, 0, NOW)]
    batch = split_by_due_time(messages, [1000], NOW)
    assert [each.offset for each, _ in batch.rejected] == [0, 0]
    assert "in the future" in batch.rejected[0][1]
    assert "partition 3 has no level" in batch.rejected[1][1]
    assert batch.waits == {TopicPartition("delay", 0): (1, NOW + AHEAD_MS + 1000)}
