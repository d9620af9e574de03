"""The index of tags: what it says of an offset is what was last noted of it, or that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage import tags
from penstock.storage.tags import NO_RECORDS, UNTAGGED, TagRuns, TagSummary, read_runs

A = TagSummary(frozenset({b"a"}), is_alike=True)
B = TagSummary(frozenset({b"b"}), is_alike=True)
MIXED = TagSummary(frozenset({b"a", b"b"}), is_alike=False)
MAYBE = TagSummary(frozenset({b"a"}), is_alike=False, may_be_alike=True)
SUMMARIES = (A, B, MIXED, UNTAGGED, NO_RECORDS)


def summary_at(runs: TagRuns, offset: int) -> TagSummary | None:
    return runs.stretch(offset, lambda summary: (summary,))[0][0]


def noted(*notes: tuple[int, int, TagSummary], start: int = 0) -> TagRuns:
    runs = TagRuns(start)
    for note in notes:
        runs.note(*note)
    return runs


def test_neighbours_with_the_same_summary_are_one_run() -> None:
    runs = noted((0, 5, A), (5, 6, A), (6, 9, B))
    assert list(runs) == [(6, A), (9, B)]


def test_what_lies_between_two_notes_is_not_known_until_it_is_noted() -> None:
    runs = noted((0, 5, A), (10, 15, A))
    assert list(runs) == [(5, A), (10, None), (15, A)]
    runs.note(7, 8, B)
    assert list(runs) == [(5, A), (7, None), (8, B), (10, None), (15, A)]
    runs.note(5, 7, A)
    runs.note(8, 10, A)
    assert list(runs) == [(7, A), (8, B), (15, A)]


def test_what_may_be_alike_is_found_out_later() -> None:
    runs = noted((0, 9, MAYBE), (9, 12, MIXED))
    runs.is_saved = True
    assert runs.settled(0) == [(9, 12)]
    runs.note(3, 5, A)
    assert not runs.is_saved
    assert list(runs) == [(3, MAYBE), (5, A), (9, MAYBE), (12, MIXED)]
    assert runs.settled(0) == [(3, 5), (9, 12)]
    runs.note(9, 12, A)
    assert list(runs)[-1] == (12, MIXED)
    assert list(read_runs(runs.to_bytes())) == list(runs)


def test_a_stretch_ends_where_the_judgement_changes() -> None:
    runs = noted((0, 5, A), (5, 8, UNTAGGED), (8, 12, B), (12, 20, A))

    def has_b(summary: TagSummary | None) -> bool:
        return summary is None or b"b" in summary.tags

    assert runs.stretch(1, has_b) == (False, 8)
    assert runs.stretch(8, has_b) == (True, 12)
    assert runs.stretch(13, has_b) == (False, 20)
    assert runs.stretch(20, has_b) == (True, None)
    assert runs.stretch(9, lambda summary: True) == (True, None)


def test_a_note_outside_the_stretch_is_left_out() -> None:
    runs = TagRuns(10)
    runs.end_offset = 20
    runs.note(0, 10, A)
    runs.note(18, 22, A)
    assert list(runs) == []
    assert runs.is_saved


def test_too_many_runs_become_coarser_and_stay_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "MAX_RUNS", 8)
    cycle = [A, B, UNTAGGED, NO_RECORDS]
    runs = noted(*((at, at + 1, cycle[at % 4]) for at in range(9)))
    assert len(runs) <= 8
    assert summary_at(runs, 0) == MIXED
    assert summary_at(runs, 2) == UNTAGGED
    assert summary_at(runs, 8) == A


def test_more_tags_or_summaries_than_are_told_apart_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "MAX_TAGS", 2)
    monkeypatch.setattr(tags, "MAX_SUMMARIES", 2)
    many = TagSummary(frozenset({b"1", b"2", b"3"}), is_alike=False)
    runs = noted((0, 1, many), (1, 2, A), (2, 3, B), (3, 4, MIXED), (4, 5, B))
    assert list(runs) == [(1, None), (2, A), (3, B), (4, None), (5, B)]


steps = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5), st.sampled_from(SUMMARIES)), max_size=40)


@given(steps, st.integers(0, 10))
def test_an_index_knows_what_was_noted_first_and_nothing_else(
    notes: list[tuple[int, int, TagSummary]], start: int
) -> None:
    runs = TagRuns(start)
    model: dict[int, TagSummary] = {}
    for base, length, summary in notes:
        runs.note(base, base + length, summary)
        covered = range(base, base + length)
        if base >= start and not any(offset in model for offset in covered):
            model |= dict.fromkeys(covered, summary)
    for offset in range(70):
        assert summary_at(runs, offset) == model.get(offset)
    again = read_runs(runs.to_bytes())
    assert list(again) == list(runs)
    assert again.start_offset == start
    ends = [end for end, _ in runs]
    assert ends == sorted(set(ends))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    content = noted((0, 5, A), (5, 9, MIXED), (20, 21, NO_RECORDS)).to_bytes()
    assert list(read_runs(content))[:2] == [(5, A), (9, MIXED)]
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x41
        with pytest.raises(ValueError, match="index of tags"):
            read_runs(bytes(damaged))
    for size in range(len(content)):
        with pytest.raises(ValueError, match="index of tags"):
            read_runs(content[:size])
