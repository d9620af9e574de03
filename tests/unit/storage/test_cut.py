"""The note of a cut that is under way, and the files it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.storage.files import Files
from penstock.storage.segmented.cleaning.truncation import CUT_FILE, Cut, carry_out, forget_cut, load_cut
from penstock.storage.segmented.reading.file_dump import reader_of
from penstock.storage.segmented.recovery.checkpoint import LogPoint

SAMPLE = Cut(start=5, end=90, segment=60, position=700, fresh=False)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def fill(folder: Path) -> None:
    for base in (0, 60, 95, 200):
        for suffix in (".log", ".index", ".timeindex", ".aborted", ".producers"):
            (folder / f"{base:020d}{suffix}").write_bytes(b"x" * 1000)
    (folder / f"{85:020d}.producers").write_bytes(b"")
    (folder / f"{91:020d}.producers").write_bytes(b"")
    (folder / "epochs").write_text("1 0\n2 70\n4 90\n6 150\n")
    (folder / "compaction.json").write_text('{"format": 1, "cleaned": 95, "passes": [[60, 1], [95, 2]]}')


def test_a_note_comes_back_as_it_was(tmp_path: Path) -> None:
    assert load_cut(Files(), tmp_path) is None
    (tmp_path / CUT_FILE).write_bytes(SAMPLE.to_bytes())
    assert load_cut(Files(), tmp_path) == SAMPLE
    read = reader_of(tmp_path / CUT_FILE)
    assert read is not None
    assert list(read()) == [{"start": 5, "end": 90, "segment": 60, "position": 700, "fresh": False}]
    forget_cut(Files(), tmp_path)
    forget_cut(Files(), tmp_path)
    assert names(tmp_path) == set()


def test_a_note_that_is_damaged_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / CUT_FILE).write_bytes(SAMPLE.to_bytes()[:-1])
    with pytest.raises(StorageError, match="unreadable"):
        load_cut(Files(), tmp_path)


def test_what_lies_behind_a_cut_goes_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path)
    for _ in range(2):
        carry_out(Files(), tmp_path, SAMPLE)
        first = {f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex", ".aborted", ".producers")}
        last = {f"{60:020d}{suffix}" for suffix in (".log", ".aborted", ".producers")}
        assert names(tmp_path) == {*first, *last, f"{85:020d}.producers", "epochs", "compaction.json"}
        assert (tmp_path / f"{60:020d}.log").stat().st_size == 700
        assert (tmp_path / f"{0:020d}.log").stat().st_size == 1000
        assert (tmp_path / "epochs").read_text() == "1 5\n2 70\n"
        assert b'"cleaned": 90' in (tmp_path / "compaction.json").read_bytes()


@pytest.mark.parametrize("base", [0, 60, 85, 500])
def test_a_log_that_begins_anew_keeps_nothing(tmp_path: Path, base: int) -> None:
    fill(tmp_path)
    for _ in range(2):
        carry_out(Files(), tmp_path, Cut(start=base, end=base, segment=base, position=0, fresh=True))
        assert names(tmp_path) == {f"{base:020d}.log", "epochs", "compaction.json"}
        assert (tmp_path / f"{base:020d}.log").read_bytes() == b""
        assert (tmp_path / "epochs").read_text() == ""


def test_the_checkpoint_counts_only_as_far_as_the_cut() -> None:
    assert SAMPLE.after(LogPoint(5, 150, 160, 80)) == LogPoint(5, 90, 90, 80)
    assert SAMPLE.after(LogPoint(5, 20, 160, 80)) == LogPoint(5, 20, 90, 80)
    fresh = Cut(start=300, end=300, segment=300, position=0, fresh=True)
    assert fresh.after(LogPoint(5, 150, 160, 80)) == LogPoint(300, 300, 300, 80)
