"""The benchmark of brokers on one database works as a whole: a kill, a count and a pause."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench.clusters.database import DatabaseCluster
from bench.sql_failover import plan

from support.programs import required_program

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("is_smoke", [True, False])
def test_no_two_cases_share_a_row(is_smoke: bool) -> None:
    keys = [measure.key for case in plan(3, is_smoke=is_smoke).cases for measure in case.measures()]
    assert keys and len(keys) == len(set(keys))


def test_two_and_three_brokers_are_columns_of_their_own() -> None:
    assert {DatabaseCluster("mariadb", size).name for size in (2, 3)} == {"2 brokers", "3 brokers"}


def test_the_pause_after_a_kill_is_measured_and_all_that_was_acknowledged_is_stored(tmp_path: Path) -> None:
    required_program("mariadbd")
    command = [sys.executable, "-m", "bench.sql_failover", "--smoke", "--data", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| kill -9")]
    figures = {label.partition(": ")[2]: float(cell.replace(",", "")) for label, _, cell in told}
    # Nobody leads before the lease of the killed broker is over.
    assert figures["interruption, worst partition"] > 3000
    assert figures["acknowledged meanwhile, all of them stored once"] > 0
    assert list(tmp_path.iterdir()) == []
