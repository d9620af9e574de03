"""The clock's value: what the last commits changed, and no more than that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.coordination.commit_history import MAX_BYTES, MAX_COMMITS, CommitHistory, changed_paths
from penstock.errors import CoordinationError

COMMITS = st.lists(st.lists(st.sampled_from(["/a", "/b", "/c/ü", "/" + "x" * 3000]), max_size=30).map(tuple))


def after_all(commits: list[tuple[str, ...]]) -> CommitHistory:
    history = CommitHistory()
    for commit in commits:
        history = history.followed_by(commit)
    return history


@given(COMMITS, st.integers(0, 150))
def test_what_it_says_is_what_was_committed(commits: list[tuple[str, ...]], version: int) -> None:
    found = after_all(commits).after(version, len(commits))
    if found is not None:
        assert list(found) == commits[version:]
    if version > len(commits):
        assert found is None


@given(COMMITS)
def test_it_stays_small_and_survives_its_encoding(commits: list[tuple[str, ...]]) -> None:
    history = after_all(commits)
    assert len(history.encode()) <= MAX_BYTES + 100
    assert CommitHistory.decode(history.encode()) == history


def test_as_many_commits_are_kept_as_are_meant_to_be() -> None:
    history = after_all([("/a",)] * (2 * MAX_COMMITS))
    assert history.after(MAX_COMMITS, 2 * MAX_COMMITS) == (("/a",),) * MAX_COMMITS
    assert history.after(MAX_COMMITS - 1, 2 * MAX_COMMITS) is None


def test_a_commit_too_large_to_keep_leaves_nothing_of_what_was_before() -> None:
    history = after_all([("/a",), ("/" + "x" * MAX_BYTES,), ("/b",)])
    assert history.after(2, 3) == (("/b",),)
    assert history.after(1, 3) is None
    assert history.after(0, 3) is None


def test_paths_are_told_once_in_the_order_of_their_first_change() -> None:
    assert changed_paths((("/b", "/a"), (), ("/a", "/c"))) == ["/b", "/a", "/c"]
    assert changed_paths(None) is None


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"commits":3}', b'{"commits":[[3]]}', b'{"commits":[3]}'])
def test_a_value_that_does_not_parse_is_refused_by_name(value: bytes) -> None:
    with pytest.raises(CoordinationError, match="/clock"):
        CommitHistory.decode(value)
