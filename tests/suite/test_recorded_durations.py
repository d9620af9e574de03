"""What files take is measured with the processes they start, and written one line a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.durations import Duration, recorded, tree_cpu_s, write

BUSY_S = 0.2
BUSY = f"import time\nwhile time.process_time() < {BUSY_S}: pass\n"


def test_what_was_written_is_read_again_in_the_order_of_names(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    durations = {"tests/b.py": Duration(12.5, 3.0), "tests/a.py": Duration(0.1, 0.1)}
    write(durations, path)
    assert recorded(path) == durations
    assert [line.split('"')[1] for line in path.read_text().splitlines()[1:-1]] == ["tests/a.py", "tests/b.py"]


def test_nothing_is_known_before_anything_was_recorded(tmp_path: Path) -> None:
    assert recorded(tmp_path / "durations.json") == {}


def test_processes_that_run_and_those_that_have_ended_are_counted() -> None:
    before = tree_cpu_s(os.getpid())
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    after = tree_cpu_s(os.getpid())
    assert after - before >= BUSY_S / 2
    running = subprocess.Popen(
        [sys.executable, "-c", f"{BUSY}print('done', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert running.stdout is not None and running.stdout.readline() == b"done\n"
        assert tree_cpu_s(os.getpid()) - after >= BUSY_S / 2
    finally:
        running.communicate(b"\n")
