"""What the described messages of today do not all use, on a message made for the purpose."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.decoding import decode
from penstock.protocol.encoding import encode
from penstock.protocol.schema import (
    i8,
    i16,
    i32,
    i64,
    message,
    nullable_since,
    since,
    struct,
    tagged,
    u16,
    u32,
    until,
)

_FLEXIBLE = 3
_NEWEST = 4


@struct
class Leaf:
    id: UUID
    weight: float = since(1, default=0.5)


@message(flexible_from=_FLEXIBLE)
class Everything:
    tiny: i8
    small: i16
    medium: i32
    large: i64
    port: u16
    crc: u32
    yes: bool
    ratio: float
    text: str
    maybe_text: str | None = nullable_since(2)
    blob: bytes
    maybe_blob: bytes | None
    id: UUID
    leaf: Leaf
    maybe_leaf: Leaf | None = since(2, default=None)
    numbers: tuple[i64, ...]
    flags: tuple[bool, ...]
    ids: tuple[UUID, ...]
    texts: tuple[str, ...]
    blobs: tuple[bytes, ...]
    maybe_leaves: tuple[Leaf, ...] | None
    old: i32 = until(1, default=-7)
    middle: str = since(1, until=2, default="middle")
    note: str | None = tagged(0, since=_FLEXIBLE, default=None)
    leaves: tuple[Leaf, ...] = tagged(2, since=_FLEXIBLE, default=())
    count: i32 = tagged(200, since=_NEWEST, default=9)
    tagged_leaf: Leaf | None = tagged(201, since=_NEWEST, default=None)


_floats = st.floats(allow_nan=False)
_leaf = st.builds(Leaf, id=st.uuids(), weight=_floats)
_texts = st.text(max_size=5) | st.just("x" * 200)
_blobs = st.binary(max_size=5) | st.just(b"x" * 200)


def _tuples(items: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, max_size=3).map(tuple)


def _bits(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(-(2**low) if low else 0, 2**high - 1)


_everything = st.builds(
    Everything,
    tiny=_bits(7, 7),
    small=_bits(15, 15),
    medium=_bits(31, 31),
    large=_bits(63, 63),
    port=_bits(0, 16),
    crc=_bits(0, 32),
    yes=st.booleans(),
    ratio=_floats,
    text=_texts,
    maybe_text=st.none() | _texts,
    blob=_blobs,
    maybe_blob=st.none() | _blobs,
    id=st.uuids(),
    leaf=_leaf,
    maybe_leaf=st.none() | _leaf,
    numbers=_tuples(_bits(63, 63)),
    flags=_tuples(st.booleans()),
    ids=_tuples(st.uuids()),
    texts=_tuples(_texts),
    blobs=_tuples(_blobs),
    maybe_leaves=st.none() | _tuples(_leaf),
    old=_bits(31, 31),
    middle=_texts,
    note=st.none() | _texts,
    leaves=_tuples(_leaf),
    count=_bits(31, 31),
    tagged_leaf=st.none() | _leaf,
)

_ID = UUID(int=7)
_PLAIN = Everything(
    tiny=1,
    small=2,
    medium=3,
    large=4,
    port=5,
    crc=6,
    yes=True,
    ratio=0.25,
    text="text",
    maybe_text="maybe",
    blob=b"blob",
    maybe_blob=b"maybe",
    id=_ID,
    leaf=Leaf(id=_ID, weight=2.0),
    maybe_leaf=Leaf(id=_ID),
    numbers=(1, 2),
    flags=(True, False),
    ids=(_ID,),
    texts=("a", "b"),
    blobs=(b"c",),
    maybe_leaves=(Leaf(id=_ID),),
    note="note",
    leaves=(Leaf(id=_ID),),
    count=10,
    tagged_leaf=Leaf(id=_ID),
)


@settings(max_examples=100, derandomize=True, database=None, deadline=None)
@given(everything=_everything)
def test_every_kind_of_field_survives_the_newest_version_but_for_what_it_dropped(
    everything: Everything,
) -> None:
    decoded, position = decode(Everything, _NEWEST, encode(everything, _NEWEST))

    assert position == len(encode(everything, _NEWEST))
    for name in Everything.__dataclass_fields__:
        if name in ("old", "middle"):
            continue
        assert getattr(decoded, name) == getattr(everything, name), name
    assert (decoded.old, decoded.middle) == (-7, "middle")


def test_a_field_that_the_version_lacks_is_dropped_and_comes_back_as_its_default() -> None:
    decoded, _ = decode(Everything, 0, encode(_PLAIN, 0))

    assert (decoded.maybe_leaf, decoded.middle, decoded.note, decoded.leaves) == (None, "middle", None, ())
    assert decoded.leaf == Leaf(id=_ID, weight=0.5)
    assert decoded.text == "text"


@pytest.mark.parametrize("version", range(_NEWEST + 1))
def test_every_truncation_is_refused(version: int) -> None:
    whole = encode(_PLAIN, version)
    decode(Everything, version, whole)

    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode(Everything, version, whole[:length])
        with pytest.raises(ProtocolError):
            decode(Everything, version, memoryview(whole)[:length])


@message(flexible_from=1)
class Word:
    text: str


@message(flexible_from=1)
class Words:
    texts: tuple[str, ...]


@message(flexible_from=1)
class MaybeWords:
    texts: tuple[str, ...] | None


@pytest.mark.parametrize(
    ("cls", "version", "data"),
    [
        (Word, 0, b"\xff\xff"),
        (Word, 1, b"\0\0"),
        (Words, 0, b"\xff\xff\xff\xff"),
        (Words, 1, b"\0\0"),
    ],
)
def test_null_is_refused_where_the_version_has_none(cls: type, version: int, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(cls, version, data)


@pytest.mark.parametrize(("cls", "data"), [(Word, b"\xff\xfe"), (Words, b"\xff\xff\xff\xfe")])
def test_a_negative_length_is_refused(cls: type, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(cls, 0, data)


def test_minus_one_is_null_and_minus_two_is_refused_in_a_nullable_array() -> None:
    assert decode(MaybeWords, 0, b"\xff\xff\xff\xff")[0] == MaybeWords(texts=None)
    with pytest.raises(ProtocolError):
        decode(MaybeWords, 0, b"\xff\xff\xff\xfe")


def test_a_string_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode(Word, 0, b"\x00\x01\xff")


def test_a_count_that_the_rest_of_the_message_cannot_hold_is_refused_at_once() -> None:
    with pytest.raises(ProtocolError, match=r"Words\.texts"):
        decode(Words, 0, b"\x7f\xff\xff\xff" + b"\0\0" * 10)
    with pytest.raises(ProtocolError, match=r"Words\.texts"):
        decode(Words, 1, b"\xff\xff\xff\xff\x0f" + b"\x01" * 10)


def test_a_varint_of_more_than_five_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="five bytes"):
        decode(Word, 1, b"\x80\x80\x80\x80\x80\x01")


def test_bytes_after_a_message_are_left_alone() -> None:
    assert decode(Word, 0, b"\x00\x01amore") == (Word(text="a"), 3)


@message(flexible_from=0)
class Tagged:
    number: i32 = tagged(1, since=0, default=0)


def test_unknown_tags_are_skipped_around_known_ones() -> None:
    data = b"\x03" + b"\x00\x02zz" + b"\x01\x04\0\0\0\x05" + b"\xff\x01\x01z"

    assert decode(Tagged, 0, data) == (Tagged(number=5), len(data))


def test_a_known_tag_whose_size_does_not_fit_its_value_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(Tagged, 0, b"\x01\x01\x05\0\0\0\x05\0")


def test_a_tag_that_runs_past_the_end_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(Tagged, 0, b"\x01\x07\x05\0\0\0\x05")
    with pytest.raises(ProtocolError):
        decode(Word, 1, b"\x02a\x01\x07\x05\0\0\0\x05")


@message(flexible_from=0)
class TaggedStruct:
    inner: Tagged | None = tagged(0, since=0, default=None)


@message(flexible_from=0)
class TaggedStructByDefault:
    inner: Tagged | None = tagged(0, since=0, default=Tagged(number=5))


def test_a_tagged_struct_that_may_be_null_has_a_marker_before_it() -> None:
    present = b"\x01\x00\x08\x01" + encode(Tagged(number=5), 0)
    null = b"\x01\x00\x01\x00"

    assert encode(TaggedStruct(inner=Tagged(number=5)), 0) == present
    assert decode(TaggedStruct, 0, present) == (TaggedStruct(inner=Tagged(number=5)), len(present))
    assert encode(TaggedStruct(), 0) == b"\0"
    assert encode(TaggedStructByDefault(inner=None), 0) == null
    assert decode(TaggedStructByDefault, 0, null) == (TaggedStructByDefault(inner=None), len(null))


def test_a_tagged_field_at_its_default_is_not_written() -> None:
    assert encode(Tagged(), 0) == b"\0"


@pytest.mark.parametrize(
    "word",
    [Word(text=None), Word(text="x" * 40_000)],  # type: ignore[arg-type]
)
def test_a_value_that_the_version_cannot_hold_is_our_own_mistake(word: Word) -> None:
    with pytest.raises(ValueError, match="Word has no v0 form"):
        encode(word, 0)


def test_a_type_that_kafka_does_not_have_is_refused_when_it_is_first_used() -> None:
    @message(flexible_from=0)
    class Strange:
        strange: complex

    with pytest.raises(TypeError, match="complex"):
        encode(Strange(strange=1j), 0)
