"""What a view shows of batches, against a model that takes every record apart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.config.view import parse_tags
from penstock.records.batch import TRANSACTIONAL_BIT, crc_of, read_header, stamp
from penstock.records.compression import Codec
from penstock.records.control import Marker, build_marker
from penstock.records.records import Headers, Record, build_batch, headers_of, records_block, walk
from penstock.storage.aborted import AbortedTransaction
from penstock.storage.tags import TagSummary
from penstock.views.batch_filter import Filtered, filtered
from penstock.views.tag_matcher import Matcher, Verdict

NAME = "penstock-tags"
EXPRESSIONS = ("a", "a,b", "a and b", "not a", "a and not b", "not (a or b)", "zz", 'a or "c d"')

tag_values = st.one_of(
    st.none(),
    st.lists(st.sampled_from([b"a", b"b", b" c d ", b"", b"zz" * 40]), max_size=4).map(b",".join),
    st.binary(max_size=6),
)
tricky = st.sampled_from([b"", NAME.encode(), b"\x1a" + NAME.encode() + b"\x02a", NAME.encode() + b"\x02a\x00"])
headers = st.lists(
    st.tuples(st.sampled_from([NAME, NAME, "other", NAME + "x"]), st.one_of(tag_values, tricky)), max_size=3
).map(tuple)
records = st.builds(
    Record,
    st.one_of(st.none(), st.binary(max_size=4), tricky),
    st.one_of(st.none(), st.binary(max_size=90), tricky),
    headers,
    st.integers(1_000, 1_100),
)
batches = st.lists(st.tuples(st.lists(records, min_size=1, max_size=6), st.sampled_from(list(Codec))), max_size=4)


def tags_of(found: Headers) -> frozenset[bytes]:
    values = [value for name, value in found if name == NAME and value]
    return frozenset(tag.strip() for value in values for tag in value.split(b",") if tag.strip())


def log_of(contents: Sequence[tuple[Sequence[Record], Codec]]) -> bytes:
    data, offset = b"", 100
    for content, codec in contents:
        batch = build_batch(content, codec=codec, base_offset=offset, leader_epoch=7)
        offset += len(content)
        data += batch
    return data


def content_of(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None, Headers]]:
    """Every record of some batches: offset, time, key, value, headers."""
    found, position = [], 0
    while position < len(data):
        header = read_header(data, position)
        batch = memoryview(data)[position : position + header.size]
        assert header.crc == crc_of(batch)
        block = records_block(batch, header)
        for record in walk(block, header.record_count):
            key, value = (None if part is None else bytes(part) for part in (record.key, record.value))
            timestamp = header.base_timestamp + record.timestamp_delta
            assert timestamp <= header.max_timestamp
            assert record.offset_delta <= header.last_offset_delta
            found.append((header.base_offset + record.offset_delta, timestamp, key, value, headers_of(block, record)))
        position += header.size
    return found


def shown(seen: Filtered) -> bytes:
    return b"".join(batch.content for batch in seen.batches)


@settings(max_examples=150, deadline=None)
@given(batches, st.sampled_from(EXPRESSIONS))
@example([([Record(None, b"\x1a" + NAME.encode() + b"\x02a")], Codec.NONE)], "a")
@example([([Record(None, None, ((NAME, b"a"),)), Record(None, b"x")], Codec.NONE)], "not a")
def test_shown_is_exactly_what_matches(contents: list[tuple[list[Record], Codec]], expression: str) -> None:
    matcher, data = Matcher(parse_tags(expression)), log_of(contents)
    seen = filtered(data, matcher, ())
    assert content_of(shown(seen)) == [found for found in content_of(data) if matcher.matches(tags_of(found[4]))]


@settings(max_examples=150, deadline=None)
@given(batches, st.sampled_from(EXPRESSIONS), st.sampled_from(EXPRESSIONS))
def test_what_is_noted_of_a_batch_is_true_for_every_view(
    contents: list[tuple[list[Record], Codec]], first: str, expression: str
) -> None:
    matcher, data = Matcher(parse_tags(expression)), log_of(contents)
    everything = content_of(data)
    for base, behind, summary in filtered(data, Matcher(parse_tags(first)), ()).notes:
        matches = [matcher.matches(tags_of(found[4])) for found in everything if base <= found[0] < behind]
        verdict = matcher.verdict(summary)
        assert verdict is not Verdict.ALL or all(matches)
        assert verdict is not Verdict.NONE or not any(matches)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(records, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(57, 400), st.integers(0, 255)), min_size=1, max_size=6),
    st.sampled_from(EXPRESSIONS),
)
def test_whatever_a_batch_holds_nothing_breaks(
    content: list[Record], changes: list[tuple[int, int]], expression: str
) -> None:
    data = bytearray(log_of([(content, Codec.NONE)]))
    for at, byte in changes:
        data[at % len(data) if at >= len(data) else at] = byte
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[16] = 2
    behind = log_of([(tagged(b"a"), Codec.NONE)])
    matcher = Matcher(parse_tags(expression))
    seen = filtered(bytes(data) + behind, matcher, ())
    assert (behind in shown(seen)) == matcher.matches(frozenset({b"a"}))


def tagged(*tags: bytes | None) -> list[Record]:
    return [Record(b"k", b"v", () if tag is None else ((NAME, tag),), 1_000) for tag in tags]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_matches_goes_out_as_it_is(codec: Codec) -> None:
    data = log_of([(tagged(b"a", b"a,b"), codec)])
    assert shown(filtered(data, Matcher(parse_tags("a")), ())) == data


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("is_large", [True, False])
def test_a_rewritten_batch_keeps_epoch_and_offsets_and_ends_with_its_last_record(codec: Codec, is_large: bool) -> None:
    records = [record._replace(value=b"v" * 5000 * is_large) for record in tagged(b"b", b"a", None, b"a", b"b")]
    data = log_of([(records, codec)])
    seen = filtered(data, Matcher(parse_tags("a")), ())
    header = read_header(shown(seen))
    assert (header.leader_epoch, header.base_offset, header.record_count) == (7, 100, 2)
    assert header.codec == (codec if is_large else Codec.NONE)
    assert (header.last_offset, seen.batches[0].shown_end, seen.batches[0].next_offset) == (103, 104, 105)
    assert seen.next_offset == 105


def test_batches_of_one_kind_are_known_to_be_alike_once_it_matters() -> None:
    data = log_of([(tagged(b"a", b"a"), Codec.ZSTD), (tagged(None, None), Codec.NONE), (tagged(b"a", None), Codec.LZ4)])
    a = frozenset({b"a"})
    assert filtered(data, Matcher(parse_tags("zz")), ()).notes == [
        (100, 102, TagSummary(a, is_alike=False, may_be_alike=True)),
        (102, 104, TagSummary(frozenset(), is_alike=True)),
        (104, 106, TagSummary(a, is_alike=False)),
    ]
    notes = filtered(data, Matcher(parse_tags("a")), ()).notes
    assert [note[2] for note in notes][::2] == [TagSummary(a, is_alike=True), TagSummary(a, is_alike=False)]
    assert filtered(data, Matcher(parse_tags("a")), (), settled=[(90, 102), (104, 106)]).notes == notes[1:2]


def test_where_a_name_stands_in_all_records_and_is_a_tag_of_none_they_are_not_alike() -> None:
    pretended = b"\x02\x1a" + NAME.encode() + b"\x02a"
    records = [Record(None, b"x", ((NAME, b"a"),)), Record(None, b"x", (("other", pretended),))]
    seen = filtered(log_of([(records, Codec.NONE)]), Matcher(parse_tags("a")), ())
    assert [found[0] for found in content_of(shown(seen))] == [100]
    assert seen.notes == [(100, 102, TagSummary(frozenset({b"a"}), is_alike=False))]


def test_nobody_is_given_markers_and_who_reads_committed_no_aborted_records() -> None:
    def transactional(offset: int, producer: int) -> bytes:
        made = build_batch(
            tagged(b"a"), base_offset=offset, producer_id=producer, producer_epoch=0, attributes=TRANSACTIONAL_BIT
        )
        return bytes(made)

    def marker(offset: int, producer: int, *, committed: bool) -> bytes:
        made = build_marker(producer, 0, Marker(committed, 0), 1_000)
        stamp(memoryview(made), offset, 0)
        return bytes(made)

    data = b"".join(
        (
            transactional(0, 5),
            transactional(1, 6),
            marker(2, 5, committed=False),
            transactional(3, 5),
            marker(4, 6, committed=True),
            marker(5, 5, committed=True),
        )
    )
    matcher = Matcher(parse_tags("a"))
    assert [found[0] for found in content_of(shown(filtered(data, matcher, ())))] == [0, 1, 3]
    aborted = [AbortedTransaction(producer_id=5, first_offset=0)]
    seen = filtered(data, matcher, aborted)
    assert [found[0] for found in content_of(shown(seen))] == [1, 3]
    assert seen.next_offset == 6


def test_a_batch_that_nobody_can_read_is_given_as_it_is_and_nothing_is_noted_of_it() -> None:
    batch = build_batch(tagged(b"b", b"a"), base_offset=100)
    broken = bytes(batch[:61]) + b"\x03" + bytes(batch[62:])
    seen = filtered(broken + log_of([(tagged(b"b"), Codec.NONE)]), Matcher(parse_tags("a")), ())
    assert shown(seen) == broken
    assert len(seen.notes) == 1
