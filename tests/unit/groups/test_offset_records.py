"""The bytes of a committed offset, which are laid out by hand, against the described format."""

from __future__ import annotations

import pytest

from penstock.groups.offsets import Committed, OffsetRecord
from penstock.groups.records import decode, encode
from penstock.ids import TopicPartition
from penstock.protocol.messages.group_records import OFFSET_COMMIT, OffsetCommitKey, OffsetCommitValue

AT = TopicPartition("töpic", 7)
COMMITS = [
    Committed(0, -1, "", 0),
    Committed(1 << 40, 3, "where I was: ✓", 1_789_000_000_000),
    Committed(5, -1, "x" * 4096, 1_789_000_000_000, expire_ms=1_789_000_060_000),
]


@pytest.mark.parametrize("committed", COMMITS)
def test_a_commit_is_written_in_the_described_format(committed: Committed) -> None:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.committed_ms,
        expire_timestamp=committed.expire_ms,
    )
    version = 1 if committed.expire_ms >= 0 else None
    assert encode(OffsetRecord("gröup", AT, committed)) == (
        OFFSET_COMMIT.key.encode(OffsetCommitKey(group="gröup", topic="töpic", partition=7)),
        OFFSET_COMMIT.value.encode(value, version),
    )


@pytest.mark.parametrize("committed", [*COMMITS, None])
def test_what_is_written_is_read_back(committed: Committed | None) -> None:
    record = OffsetRecord("g", AT, committed)
    assert decode(encode(record)) == record
