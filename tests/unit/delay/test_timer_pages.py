"""Pages of what waits, compared with a sorted list."""

from __future__ import annotations

import asyncio
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.delay import timer_pages
from penstock.delay.due_index import DueIndex
from penstock.delay.entries import due_of, pack
from penstock.delay.index_files import IndexFolder
from penstock.delay.timer_pages import Numbered, Spot, end_of, first_number, read_page
from penstock.storage.files import Files

PLENTY = 1 << 40


async def read_all(index: DueIndex, start: int, max_bytes: int = PLENTY) -> list[Numbered]:
    """Everything from a number on, read on from where each page ended."""
    found: list[Numbered] = []
    at: Spot | int = start
    while True:
        page = read_page(await index.contents(), at, max_bytes)
        found += page.shown
        if page.is_last:
            return found
        assert page.reached is not None
        at = page.reached


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("on_disk", [True, False])
def test_pages_give_what_a_sorted_list_would(seed: int, on_disk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_pages, "PAGE_MESSAGES", 7)
    monkeypatch.setattr(timer_pages, "LOOK_AT_MOST", 20)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        asyncio.run(_play(random.Random(seed), IndexFolder(Path(folder), Files(), pool) if on_disk else None))


async def _play(chance: random.Random, place: IndexFolder | None) -> None:
    index = DueIndex(place)
    await index.open()
    waiting: set[bytes] = set()
    for number in range(600):
        step = chance.random()
        if step < 0.7:
            entry = pack(10_000 + chance.choice([0, 1, 999, 1000, 70_000, 10**9]), number, 0, 10, 1)
            if entry > index.mark:
                waiting.add(entry)
                index.add(entry)
        elif step < 0.85 and waiting:
            entry = chance.choice(sorted(waiting))
            waiting.discard(entry)
            index.cancel(entry)
        elif step < 0.95:
            await index.save(number, {})
            await index.merge()
        elif step < 0.96 and waiting:
            mark = sorted(waiting)[len(waiting) // 3]
            await index.reach(due_of(mark) + 1)
            index.passed(mark)
            waiting = {entry for entry in waiting if entry > mark}
        else:
            found = await read_all(index, 0, chance.choice([0, 25, PLENTY]))
            assert [entry for _, entry in found] == sorted(waiting)
            numbers = [number for number, _ in found]
            assert numbers == sorted(set(numbers))
            assert all(first_number(due_of(entry)) <= number for number, entry in found)
            contents = await index.contents()
            assert not found or numbers[-1] < end_of(contents)
            for start in range(0, len(found), 5):
                # Whoever is not known by his spot finds his place by counting.
                assert await read_all(index, numbers[start]) == found[start:]


async def test_a_page_begins_at_a_due_time_within_a_second() -> None:
    index = DueIndex(None)
    await index.open()
    entries = [pack(5000 + number, number, 0, 10, 1) for number in range(100)]
    for entry in entries:
        index.add(entry)
    page = read_page(await index.contents(), first_number(5040), 0, 5040)
    assert page.shown == [Numbered(first_number(5000) + 40, entries[40])]


async def test_of_more_in_one_second_than_there_are_numbers_the_first_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timer_pages, "_MAX_COUNT", 9)
    index = DueIndex(None)
    await index.open()
    entries = [pack(5000, number, 0, 10, 1) for number in range(20)] + [pack(6000, 0, 0, 10, 1)]
    for entry in entries:
        index.add(entry)
    assert [entry for _, entry in await read_all(index, 0)] == [*entries[:10], entries[20]]
