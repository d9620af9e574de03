"""The benchmark of topics in a database works as a whole, with few records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_topics_in_a_database_are_measured_beside_plain_sql() -> None:
    command = [sys.executable, "-m", "bench.sql", "--databases", "sqlite", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--records", "800", "--singles", "20"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| sqlite")]
    rates, times = rows[:4], rows[4:]
    assert [row[0] for row in rates] == [f"sqlite, {size} B, {count}" for size in (100, 1024) for count in (1, 8)]
    assert all(float(cell.strip("*")) >= 0 for row in rates for cell in row[1:])
    assert [row[0] for row in times] == ["sqlite, 100 B", "sqlite, 1024 B"]


def test_direct_mode_is_measured_beside_plain_sql_and_repeats_after_losing_redis_are_counted() -> None:
    command = [sys.executable, "-m", "bench.sql_direct", "--databases", "sqlite", "--rounds", "1", "--records", "800"]
    done = subprocess.run(
        [*command, "--seconds", "0.1", "--handled", "40000"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| sqlite")]
    rates, (repeats,) = rows[:4], rows[4:]
    assert [row[0] for row in rates] == [f"sqlite, {size} B, {count}" for size in (100, 1024) for count in (1, 8)]
    assert all(float(cell.strip("*")) >= 0 for row in rates for cell in row[1:])
    assert float(repeats[1]) > 0
    assert repeats[-1] == "0", "none is lost"
