"""A short run of what `python -m tests.sql_proof.primary_loss` measures for longer."""

from __future__ import annotations

from pathlib import Path

from sql_proof.primary_loss import longest_gap, run


def test_nothing_is_lost_when_the_primary_of_one_of_three_groups_is_killed_under_load(tmp_path: Path) -> None:
    (done,) = run(tmp_path, rounds=1, away_s=2.0)
    # Most messages without keys went to partitions of other groups, and were not late.
    assert done.meanwhile > 0
    assert done.late < done.meanwhile / 2


def test_the_longest_gap_counts_the_ends_of_the_time() -> None:
    assert longest_gap([], 10, 14) == 4
    assert longest_gap([1, 11, 13, 20], 10, 16) == 3
