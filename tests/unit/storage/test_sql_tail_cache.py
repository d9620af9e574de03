"""The batches that logs in a database keep in memory, and the bound that they share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import read_header, stamp
from penstock.storage.sql.tail_cache import CacheRoom, TailCache, WrittenBatch
from support.logs import batch

ALL = 1 << 30


def add(cache: TailCache, value: bytes) -> int:
    """Adds a batch of one record at the end; gives its size."""
    made = batch(value)
    stamp(memoryview(made), cache.end_offset, 0)
    cache.add(WrittenBatch(read_header(made), bytes(made), 0))
    return len(made)


def held(cache: TailCache) -> int:
    return cache.read(cache.start_offset, ALL, cache.end_offset).size


def test_the_log_that_was_appended_to_longest_ago_makes_room_first() -> None:
    room = CacheRoom(3 * len(batch(b"x" * 100)))
    old, new = TailCache(room), TailCache(room)
    add(old, b"x" * 100)
    add(new, b"x" * 100)
    add(new, b"x" * 100)
    assert (old.start_offset, new.start_offset) == (0, 0)
    add(new, b"x" * 100)
    assert (old.start_offset, old.end_offset, held(old)) == (1, 1, 0)
    assert (new.start_offset, new.end_offset) == (0, 3)
    add(new, b"x" * 100)
    assert (new.start_offset, new.end_offset) == (1, 4)


def test_what_is_larger_than_the_room_is_not_kept() -> None:
    room = CacheRoom(10)
    cache = TailCache(room)
    add(cache, b"x")
    assert (cache.start_offset, cache.end_offset, room.bytes) == (1, 1, 0)


def test_a_log_that_is_cut_or_begun_anew_gives_its_room_back() -> None:
    room = CacheRoom(ALL)
    one, other = TailCache(room), TailCache(room)
    sizes = [add(one, b"%d" % number) for number in range(4)]
    rest = add(other, b"other")
    one.cut(3)
    assert room.bytes == sum(sizes[:3]) + rest
    one.forget_below(1)
    assert (one.start_offset, room.bytes) == (1, sum(sizes[1:3]) + rest)
    one.begin_at(9)
    assert (one.start_offset, one.end_offset, room.bytes) == (9, 9, rest)


@given(
    st.integers(0, 2_000),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400), st.sampled_from(["add", "cut", "begin", "forget"]))),
)
def test_the_bound_holds_and_what_is_held_is_the_end_of_the_log(
    max_bytes: int, steps: list[tuple[int, int, str]]
) -> None:
    room = CacheRoom(max_bytes)
    caches = [TailCache(room) for _ in range(3)]
    for number, size, what in steps:
        cache = caches[number]
        if what == "add":
            add(cache, b"x" * size)
        elif what == "cut":
            cache.cut(max(cache.start_offset, cache.end_offset - 1))
        elif what == "begin":
            cache.begin_at(cache.end_offset)
        else:
            cache.forget_below(cache.start_offset + 1)
        assert room.bytes == sum(map(held, caches)) <= max_bytes
