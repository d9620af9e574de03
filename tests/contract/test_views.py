"""A view of any engine's log shows what matches, whatever happens to the log."""

from __future__ import annotations

import random

import pytest

from penstock.errors import ApiError, Code
from penstock.records.compression import Codec
from penstock.records.records import Record
from support.leading import leading
from support.logs import EPOCH, NewLog, append_batch
from support.transactions import end
from support.views import Viewer, append_tagged, tagged, tagged_batch

CODECS = list(Codec)


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
async def test_a_view_shows_what_matches_at_the_offsets_of_its_base(new_log: NewLog, max_bytes: int) -> None:
    log = await new_log(segment_bytes=4096)
    names = ["a", "b", "c", ""]
    wanted = []
    for number in range(120):
        name = names[number * 7 % 4]
        records = [tagged(b"x" * 40, *([name] if name else []), *(["even"] if each % 2 else [])) for each in range(3)]
        base = await append_tagged(log, *records, codec=CODECS[number % 5])
        if name in ("a", "b"):
            wanted.append(base + 1)
    partition = leading(log, EPOCH)
    viewer = Viewer("(a or b) and even", max_bytes=max_bytes)
    assert await viewer.offsets(partition) == wanted
    assert await viewer.offsets(partition, 100) == [offset for offset in wanted if offset >= 100]
    assert await Viewer("zz", max_bytes=max_bytes).offsets(partition) == []


async def test_what_is_known_not_to_match_is_not_read_again(new_log: NewLog) -> None:
    log = await new_log(segment_bytes=4096)
    for number in range(100):
        await append_tagged(log, *(tagged(b"x" * 90, "rare" if number == 70 else "usual") for _ in range(4)))
    partition = leading(log, EPOCH)
    first, second = Viewer("usual"), Viewer("rare")
    assert len(await first.offsets(partition)) == 396
    assert first.effort.looked_at_bytes >= log.size_bytes
    assert await second.offsets(partition) == [280, 281, 282, 283]
    assert 0 < second.effort.looked_at_bytes < 1000
    assert second.effort.shown_bytes < 1000
    assert second.fetches == 1
    third = Viewer("rare")
    assert await third.offsets(partition) == [280, 281, 282, 283]
    assert third.effort.looked_at_bytes == 0


async def test_what_matches_as_a_whole_is_sent_as_it_lies_in_the_log(new_log: NewLog) -> None:
    log = await new_log()
    for _ in range(20):
        await append_tagged(log, tagged(b"x", "a"), tagged(b"y", "a"), codec=Codec.ZSTD)
    partition = leading(log, EPOCH)
    assert await Viewer("b").offsets(partition) == []
    assert await Viewer("a").offsets(partition) == list(range(40))
    again = Viewer("a")
    assert await again.offsets(partition) == list(range(40))
    assert (again.effort.looked_at_bytes, again.effort.shown_bytes) == (0, log.size_bytes)


async def test_after_a_cut_other_records_at_the_same_offsets_are_looked_at(new_log: NewLog) -> None:
    log = await new_log(segment_bytes=2048)
    for _ in range(40):
        await append_tagged(log, tagged(b"x" * 100, "a"))
    assert await Viewer("b").offsets(leading(log, EPOCH)) == []
    await log.cut(15)
    for _ in range(30):
        await append_tagged(log, tagged(b"x" * 100, "b"), epoch=EPOCH + 1)
    partition = leading(log, EPOCH + 1)
    assert await Viewer("b").offsets(partition) == list(range(15, 45))
    assert await Viewer("a").offsets(partition) == list(range(15))


async def test_a_view_goes_on_while_compaction_and_retention_take_records_away(new_log: NewLog) -> None:
    log = await new_log(
        segment_bytes=2048, cleanup_policy="compact,delete", min_cleanable_dirty_ratio=0, retention_ms=-1
    )
    for number in range(60):
        await append_tagged(log, tagged(b"x" * 60, "a", key=b"k%d" % (number % 7)), tagged(b"y", "b", key=b"other"))
    partition = leading(log, EPOCH)
    assert await Viewer("a").offsets(partition) == list(range(0, 120, 2))
    assert await log.compact()
    left = await Viewer("a or b").offsets(partition)
    assert len(left) < 120
    assert await Viewer("a").offsets(partition) == [offset for offset in left if offset % 2 == 0]
    await log.trim(110)
    assert await Viewer("a").offsets(partition) == [offset for offset in left if offset % 2 == 0 and offset >= 110]


async def test_an_offset_that_is_not_there_is_refused_although_nothing_would_match(new_log: NewLog) -> None:
    log = await new_log()
    for _ in range(5):
        await append_tagged(log, tagged(b"x", "a"))
    partition = leading(log, EPOCH)
    assert await Viewer("b").offsets(partition) == []
    await log.trim(3)
    for offset in (2, 6):
        viewer = Viewer("b")
        with pytest.raises(ApiError) as refusal:
            await viewer.read_once(partition, offset)
        assert refusal.value.code is Code.OFFSET_OUT_OF_RANGE


async def test_who_reads_committed_sees_neither_what_was_aborted_nor_what_is_open(new_log: NewLog) -> None:
    log = await new_log()

    async def append(producer: int, *records: Record) -> int:
        guard = log.producers.guard(producer)
        made = tagged_batch(records, producer=producer)
        return (await append_batch(log, memoryview(made), EPOCH, guard=guard)).base_offset

    aborted = await append(1, tagged(b"x", "a"))
    committed = await append(2, tagged(b"x", "a"), tagged(b"y", "b"))
    await end(log, 1, commit=False)
    await end(log, 2, commit=True)
    plain = await append_tagged(log, tagged(b"x", "a"))
    still_open = await append(3, tagged(b"x", "a"))
    partition = leading(log, EPOCH)
    for _ in range(2):  # the second time with an index
        assert await Viewer("a", committed_only=True).offsets(partition) == [committed, plain]
        assert await Viewer("a").offsets(partition) == [aborted, committed, plain, still_open]
    await end(log, 3, commit=True)
    assert await Viewer("a", committed_only=True).offsets(leading(log, EPOCH)) == [committed, plain, still_open]


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_to_the_log_a_view_shows_what_matches(new_log: NewLog, seed: int) -> None:
    rng = random.Random(seed)
    log = await new_log(segment_bytes=1500, cleanup_policy="delete", retention_ms=-1)
    held: dict[int, frozenset[str]] = {}
    epoch = EPOCH
    for _ in range(60):
        match rng.choice(["append"] * 6 + ["look"] * 3 + ["cut", "trim"]):
            case "append":
                sets = [frozenset(rng.sample("abc", rng.randrange(3))) for _ in range(rng.randrange(1, 5))]
                records = [tagged(b"x" * rng.randrange(60), *tags) for tags in sets]
                base = await append_tagged(log, *records, codec=rng.choice(CODECS), epoch=epoch)
                held |= {base + at: tags for at, tags in enumerate(sets)}
            case "cut" if log.end_offset > log.start_offset:
                await log.cut(rng.randrange(log.start_offset, log.end_offset))
                held = {offset: tags for offset, tags in held.items() if offset < log.end_offset}
                epoch += 1
            case "trim":
                await log.trim(rng.randint(log.start_offset, (log.start_offset * 3 + log.end_offset) // 4))
            case _:
                partition = leading(log, epoch)
                start = rng.randint(log.start_offset, log.end_offset)
                shown = await Viewer("a and not b", max_bytes=rng.choice([1, 300, 1 << 20])).offsets(partition, start)
                assert shown == [at for at, tags in held.items() if at >= start and "a" in tags and "b" not in tags]
