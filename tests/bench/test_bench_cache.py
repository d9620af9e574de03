"""What the benchmark keeps in its cache is there as a whole, and is obtained once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bench.servers.cached_folder import cached_folder

_CALLERS = 8


def test_a_folder_that_many_want_at_the_same_time_is_filled_once(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "libs"
    together = threading.Barrier(_CALLERS)
    filled = []

    def fill(begun: Path) -> None:
        filled.append(begun)
        begun.mkdir()
        for number in range(100):
            (begun / f"{number}.jar").write_bytes(b"whole")

    def want() -> list[bytes]:
        together.wait()
        found = cached_folder(folder, fill)
        return [file.read_bytes() for file in found.iterdir()]

    with ThreadPoolExecutor(_CALLERS) as callers:
        each = [callers.submit(want) for _ in range(_CALLERS)]
    assert [found.result() for found in each] == [[b"whole"] * 100] * _CALLERS
    assert len(filled) == 1


def test_a_folder_that_was_broken_off_is_filled_anew(tmp_path: Path) -> None:
    folder = tmp_path / "libs"

    def break_off(begun: Path) -> None:
        begun.mkdir()
        (begun / "half").touch()
        raise OSError("the network is gone")

    def fill(begun: Path) -> None:
        begun.mkdir()
        (begun / "whole").touch()

    with pytest.raises(OSError, match="the network is gone"):
        cached_folder(folder, break_off)
    assert not folder.exists()
    assert [file.name for file in cached_folder(folder, fill).iterdir()] == ["whole"]
