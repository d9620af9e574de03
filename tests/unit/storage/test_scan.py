"""Finding batches in files that cannot be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.records.batch import stamp
from penstock.storage.files import File, Files
from penstock.storage.segmented.recovery import scan
from penstock.storage.segmented.recovery.scan import Damage, FoundBatch, find_next, survey
from support.logs import batch


def stamped(offset: int, size: int = 100) -> bytes:
    made = batch(b"%d" % offset + b"x" * size)
    stamp(memoryview(made), offset, 1)
    return bytes(made)


@pytest.fixture
def write(tmp_path: Path) -> object:
    def create(*pieces: bytes) -> File:
        file = Files().create(tmp_path / "segment")
        file.write(0, b"".join(pieces))
        return file

    return create


def found(file: File, above: int = -1) -> list[object]:
    """Base offsets of batches, and (start, end, first, resumes) of damage."""
    return [
        tuple(each) if isinstance(each, Damage) else each.header.base_offset
        for each in survey(file, 0, file.size(), above)
    ]


def test_sound_batches_are_found_one_behind_the_other(write) -> None:  # type: ignore[no-untyped-def]
    assert found(write(*(stamped(offset) for offset in range(5)))) == [0, 1, 2, 3, 4]
    assert found(write()) == []


def test_garbage_between_batches_is_damage(write) -> None:  # type: ignore[no-untyped-def]
    one = len(stamped(0))
    file = write(stamped(0), b"?" * 1000, stamped(7), b"!" * 5)
    assert found(file) == [0, (one, one + 1000, 1, 7), 7, (2 * one + 1000, 2 * one + 1005, 8, None)]


def test_a_batch_is_found_wherever_a_window_ends(write, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(scan, "WINDOW_BYTES", 256)
    for gap in range(150, 600, 7):
        file = write(bytes(gap), stamped(3, 400))
        got = find_next(file, 0, file.size(), -1)
        assert got is not None and (got.position, got.header.base_offset) == (gap, 3)


def test_a_batch_with_an_offset_that_was_passed_is_not_found(write) -> None:  # type: ignore[no-untyped-def]
    file = write(b"?" * 10, stamped(4), stamped(9))
    got = find_next(file, 0, file.size(), 4)
    assert isinstance(got, FoundBatch) and got.header.base_offset == 9


@pytest.mark.parametrize("above", [(1 << 32) - 2, (1 << 32) + 5, (1 << 33) - 1, (1 << 40) + 17])
def test_offsets_beyond_32_bits_are_found(write, above: int) -> None:  # type: ignore[no-untyped-def]
    for ahead in (1, 2, 1000, 1 << 30):
        file = write(b"?" * 33, stamped(above + ahead))
        got = find_next(file, 0, file.size(), above)
        assert got is not None and got.header.base_offset == above + ahead


def test_a_wrong_offset_is_damage_although_the_crc_does_not_cover_it(write) -> None:  # type: ignore[no-untyped-def]
    one = len(stamped(1))
    wrong = bytearray(stamped(1))
    wrong[7] ^= 0x10
    file = write(stamped(0), bytes(wrong), stamped(2), stamped(3))
    assert found(file) == [0, (one, 2 * one, 1, 2), 2, 3]


def test_gaps_that_compaction_left_are_no_damage(write) -> None:  # type: ignore[no-untyped-def]
    assert found(write(stamped(3), stamped(10), stamped(500))) == [3, 10, 500]


def test_a_batch_larger_than_a_window_is_checked_piece_by_piece(write, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(scan, "WINDOW_BYTES", 256)
    one = len(stamped(0, 5000))
    broken = bytearray(stamped(1, 5000))
    broken[4000] ^= 1
    assert found(write(stamped(0, 5000), bytes(broken), stamped(2, 5000))) == [0, (one, 2 * one, 1, 2), 2]


def test_a_wrong_offset_behind_damage_does_not_hide_what_follows(write) -> None:  # type: ignore[no-untyped-def]
    one = len(stamped(0))
    broken, wrong = bytearray(stamped(0)), bytearray(stamped(1))
    broken[80] ^= 1
    wrong[4] ^= 1
    file = write(bytes(broken), bytes(wrong), stamped(2))
    assert found(file) == [(0, 2 * one, 0, 2), 2]
