"""What one pass makes of batches of transactions and of their markers."""

from __future__ import annotations

from penstock.records.batch import BatchHeader, read_header, stamp
from penstock.records.control import Marker, build_marker
from penstock.storage.aborted import AbortedEntry, AbortedIndex, AbortedSpans
from penstock.storage.compaction import CompactionState, KeyTable, Rewriting
from support.logs import NOW_MS, batch, seen
from support.transactions import txn_batch

LONG_AGO = 1 << 40
"""Everything below has been there long enough."""
NONE_ABORTED = AbortedIndex().spans(LONG_AGO)


def placed(made: bytearray, offset: int) -> tuple[memoryview, BatchHeader]:
    view = memoryview(made)
    stamp(view, offset, 0)
    return view, read_header(view)


def marker(producer: int, offset: int) -> tuple[memoryview, BatchHeader]:
    return placed(build_marker(producer, 0, Marker(committed=False, coordinator_epoch=0), NOW_MS), offset)


def aborted(producer: int, first: int, last: int) -> AbortedSpans:
    index = AbortedIndex()
    index.add(AbortedEntry(producer, first, last, last + 1))
    return index.spans(LONG_AGO)


def rewriting(spans: AbortedSpans, *later: tuple[memoryview, BatchHeader], needed: frozenset[int]) -> Rewriting:
    table = KeyTable(1 << 20, spans)
    for each in later:
        assert table.add(*each)
    return Rewriting(table, spans, needed, LONG_AGO)


def test_the_marker_of_an_aborted_transaction_stays_as_long_as_a_list_may_name_it() -> None:
    inside = placed(txn_batch(b"bad", producer=1, keys=[b"k"]), 0)
    first = rewriting(aborted(1, 0, 1), needed=frozenset())
    assert first.rewrite(*inside) is None
    assert first.rewrite(*marker(1, 1)) is not None
    assert rewriting(NONE_ABORTED, needed=frozenset()).rewrite(*marker(1, 1)) is None


def test_the_marker_of_a_transaction_stays_as_long_as_anything_of_it_is_left() -> None:
    inside = placed(txn_batch(b"good", producer=1, keys=[b"k"]), 0)
    other = placed(txn_batch(b"other", producer=2, keys=[b"k"]), 2)
    with_records = rewriting(NONE_ABORTED, needed=frozenset())
    assert with_records.rewrite(*inside) is not None
    assert with_records.rewrite(*marker(2, 1)) is None, "another producer's"
    assert with_records.rewrite(*marker(1, 3)) is not None
    assert with_records.rewrite(*marker(1, 4)) is None, "the same again ends nothing"
    superseded = rewriting(NONE_ABORTED, other, needed=frozenset())
    assert superseded.rewrite(*inside) is None
    assert superseded.rewrite(*marker(1, 3)) is None


def test_a_batch_that_is_needed_stays_without_records_and_keeps_its_marker() -> None:
    inside = placed(txn_batch(b"a", b"b", producer=1, sequence=7, keys=[b"k", b"l"]), 10)
    later = placed(batch(b"c", b"d", keys=[b"k", b"l"]), 20)
    first = rewriting(NONE_ABORTED, later, needed=frozenset({10}))
    kept = first.rewrite(*inside)
    assert kept is not None and seen(bytes(kept)) == []
    header = read_header(kept)
    assert (header.base_offset, header.last_offset, header.base_sequence, header.last_sequence) == (10, 11, 7, 8)
    assert (header.record_count, header.max_timestamp, header.is_transactional) == (0, -1, True)
    assert first.rewrite(*marker(1, 12)) is not None
    assert rewriting(NONE_ABORTED, needed=frozenset({10})).rewrite(kept, header) == kept
    assert rewriting(NONE_ABORTED, needed=frozenset()).rewrite(kept, header) is None, "once it is not needed"


def test_what_was_aborted_supersedes_nothing() -> None:
    good = placed(batch(b"good", keys=[b"k"]), 0)
    bad = placed(txn_batch(b"bad", producer=1, keys=[b"k"]), 1)
    assert rewriting(aborted(1, 1, 2), bad, needed=frozenset()).rewrite(*good) is not None
    assert rewriting(NONE_ABORTED, bad, needed=frozenset()).rewrite(*good) is None


def test_after_a_cut_nothing_that_follows_counts_as_compacted() -> None:
    state = CompactionState(5000, ((2000, 1), (5000, 2)))
    assert state.cut(3000) == CompactionState(3000, ((2000, 1), (3000, 2)))
    assert state.cut(5000) == state
    assert state.cut(3000).tombstones_end(100, 10) == 3000
