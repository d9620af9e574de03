"""The benchmark of views works as a whole, with few records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_a_view_is_measured_beside_filtering_in_the_consumer() -> None:
    command = [sys.executable, "-m", "bench.views", "--records", "2000", "--rounds", "1", "--codecs", "lz4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == [
        f"{kind}, lz4, {time}" for kind in ("mixed", "apart") for time in ("first time", "again")
    ]
    assert all(float(row[3].strip("*")) > 2 for row in rows), done.stdout
