"""The regression guard measures every cost, and fails for one that has risen by more than its margin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from bench.guard.__main__ import BASELINE
from bench.guard.costs import costs

ROOT = Path(__file__).parent.parent.parent


def guard(*options: str) -> tuple[int, str]:
    """Its exit status and what it says; nothing that it has started is left."""
    command = [sys.executable, "-m", "bench.guard", "--smoke", *options]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        said, _ = process.communicate(timeout=180)
    assert [pid for pid in psutil.pids() if is_of(process.pid, pid)] == []
    return process.returncode, said


def is_of(session: int, pid: int) -> bool:
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    baseline = tmp_path_factory.mktemp("guard") / "baseline.json"
    status, said = guard("--update", "--baseline", str(baseline))
    assert status == 0, said
    return baseline


def test_every_cost_is_measured(measured: Path) -> None:
    ratios = json.loads(measured.read_text())
    assert list(ratios) == [cost.name for cost in sorted(costs(), key=lambda cost: cost.is_in_memory)]
    assert all(ratio > 0 for ratio in ratios.values()), ratios


def test_a_cost_that_has_risen_is_named(measured: Path, tmp_path: Path) -> None:
    ratios = json.loads(measured.read_text())
    dearer, *others = ratios
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps(dict.fromkeys(others, 1e6) | {dearer: 0.01}))
    status, said = guard("--baseline", str(baseline))
    assert status == 1, said
    verdict = said[said.index("more CPU than the baseline allows") :]
    assert dearer in verdict
    assert not any(other in verdict for other in others)


def test_the_baseline_has_every_cost() -> None:
    assert set(json.loads(BASELINE.read_text())) == {cost.name for cost in costs()}
