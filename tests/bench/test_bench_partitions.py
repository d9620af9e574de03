"""The benchmark of many partitions works as a whole, with few of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_a_topic_is_created_and_deleted_beside_another_client() -> None:
    command = [sys.executable, "-m", "bench.partitions", "--sizes", "20", "50", "--records", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    head, _, *rows = (line.strip("| ").split(" | ") for line in done.stdout.splitlines())
    assert [row[0] for row in rows] == ["Penstock, 20", "Penstock, 50"]
    assert all(len(row) == len(head) for row in rows)
    assert all(float(cell.replace(",", "")) >= 0 for row in rows for cell in row[1:])
