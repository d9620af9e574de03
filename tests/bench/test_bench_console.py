"""The benchmark of the console works as a whole, with a small cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.console import PAGES

ROOT = Path(__file__).parent.parent.parent


def test_every_page_is_opened_and_requests_are_counted() -> None:
    command = [sys.executable, "-m", "bench.console", "--partitions", "60", "--groups", "5"]
    command += ["--messages", "20000", "--rounds", "1", "--watch-s", "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    opened = {row[0]: row[1:] for row in rows if row[0] in PAGES}
    assert opened.keys() == PAGES.keys()
    assert all(float(cells[0].split()[0]) > 0 for cells in opened.values()), done.stdout
    watched = [row for row in rows if row[0] in ("0", "1", "50")]
    assert [row[0] for row in watched] == ["0", "1", "50"]
    assert all(float(row[3]) > 0 for row in watched) and float(watched[2][5]) > 0, done.stdout
