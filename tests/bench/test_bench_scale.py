"""The measurement of a large cluster's metadata works as a whole, with a small one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_a_broker_is_lost_and_others_lead() -> None:
    command = [sys.executable, "-m", "bench.scale", "--brokers", "6", "--partitions", "300"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    head, _, *rows = (line.strip("| ").split(" | ") for line in done.stdout.splitlines())
    assert len(rows) == 8
    assert all(float(cell) >= 0 for row in rows for cell in row[1:4])
    # Of 300 partitions every sixth, and what topics that were created meanwhile have given it.
    assert any(row[0].startswith("broker 3 is lost: other leaders for ") for row in rows), rows
    assert head[:4] == ["what", "s", "CPU-s", "longest stall, s"]
