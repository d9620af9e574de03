"""The index of aborted transactions: look-ups that find what a search would find, bytes that are right or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, read_header
from penstock.storage.aborted import AbortedEntry, AbortedIndex, read_aborted
from support.transactions import txn_batch


def index_of(entries: list[AbortedEntry]) -> AbortedIndex:
    index = AbortedIndex()
    for entry in entries:
        index.add(entry)
    return index


@st.composite
def histories(draw: st.DrawFn) -> list[AbortedEntry]:
    """Entries as a log makes them: transactions that begin, overlap, and end with a commit or an abort."""
    entries: list[AbortedEntry] = []
    opened: dict[int, int] = {}
    for offset, (producer, outcome) in enumerate(
        draw(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["write", "commit", "abort"])), max_size=60))
    ):
        if outcome == "write":
            opened.setdefault(producer, offset)
        elif producer in opened:
            first = opened.pop(producer)
            if outcome == "abort":
                entries.append(AbortedEntry(producer, first, offset, min(opened.values(), default=offset + 1)))
    return entries


@given(histories(), st.integers(0, 60))
def test_a_cut_index_is_that_of_the_log_up_to_there(entries: list[AbortedEntry], end: int) -> None:
    index = index_of(entries)
    index.cut(end)
    left = [entry for entry in entries if entry.marker_offset < end]
    assert index.to_bytes(0, 60) == index_of(left).to_bytes(0, 60)
    assert index.removals == (len(left) < len(entries))


@given(histories(), st.integers(0, 60), st.integers(0, 60))
def test_a_look_up_finds_what_a_search_through_all_finds(entries: list[AbortedEntry], start: int, end: int) -> None:
    found = index_of(entries).overlapping(start, end)
    overlapping = [entry for entry in entries if entry.marker_offset >= start and entry.first_offset < end]
    assert found == sorted(((entry.producer_id, entry.first_offset) for entry in overlapping), key=lambda e: e[1])


@given(histories(), st.integers(0, 60), st.integers(0, 60))
def test_a_trimmed_index_goes_on_as_if_the_rest_had_never_been(
    entries: list[AbortedEntry], offset: int, start: int
) -> None:
    index = index_of(entries)
    index.trim(offset)
    rest = index_of([entry for entry in entries if entry.marker_offset >= offset])
    assert index.to_bytes(0, 99) == rest.to_bytes(0, 99)
    assert index.overlapping(start, 99) == rest.overlapping(start, 99)
    assert index.removals == (len(index) != len(entries))


@given(histories(), st.integers(0, 60))
def test_lists_of_segments_make_the_index_again_however_they_overlap(entries: list[AbortedEntry], middle: int) -> None:
    index, again = index_of(entries), AbortedIndex()
    for content in (index.to_bytes(0, middle), index.to_bytes(max(0, middle - 10), 99)):
        for entry in read_aborted(content)[1]:
            again.add(entry)
    assert again.to_bytes(0, 99) == index.to_bytes(0, 99)


@given(histories(), st.integers(0, 4), st.integers(0, 60))
def test_a_batch_belongs_to_an_aborted_transaction_or_not(
    entries: list[AbortedEntry], producer: int, offset: int
) -> None:
    spans = index_of(entries).spans(99)

    def header(attributes: int) -> BatchHeader:
        made = read_header(txn_batch(b"x", producer=producer))
        return made._replace(base_offset=offset, attributes=attributes)

    expected = any(e.producer_id == producer and e.first_offset <= offset <= e.marker_offset for e in entries)
    assert spans.hold(header(TRANSACTIONAL_BIT)) is expected
    assert spans.hold(header(TRANSACTIONAL_BIT | CONTROL_BIT)) is expected
    assert not spans.hold(header(0)), "a batch outside of transactions counts in any case"


def test_a_list_says_how_far_it_reaches() -> None:
    index = index_of([AbortedEntry(1, 0, 5, 6), AbortedEntry(2, 7, 9, 10)])
    assert read_aborted(index.to_bytes(0, 9)) == (9, [AbortedEntry(1, 0, 5, 6)])
    assert read_aborted(index.to_bytes(6, 20)) == (20, [AbortedEntry(2, 7, 9, 10)])
    assert read_aborted(AbortedIndex().to_bytes(0, 3)) == (3, [])


def test_any_cut_or_flipped_bit_of_a_list_is_noticed() -> None:
    content = index_of([AbortedEntry(1, 0, 5, 6), AbortedEntry(2, 7, 9, 10)]).to_bytes(0, 20)
    broken = [content[:size] for size in range(len(content))]
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 0x20
        broken.append(bytes(flipped))
    for each in broken:
        with pytest.raises(ValueError):
            read_aborted(each)
