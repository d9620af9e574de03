"""The benchmark of the pipeline works as a whole, with few records, and without what Maven would have to bring."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.usefixtures("java")


def test_the_pipeline_is_measured_and_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.pipeline", "--alone", "--rows", "2000", "--rounds", "1", "--turns", "1"]
    command += ["--growth", "0.002,0.004", "--out", str(tmp_path), "--data", str(tmp_path / "data")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "pipeline.json").read_text())["figures"]
    measured = {each["measure"]: each["targets"]["Penstock"]["median"] for each in figures}
    left = [measured.pop(name) for name in list(measured) if "left for the next" in name]
    assert len(left) == 2
    assert all(share >= 0 for share in left)
    assert len(measured) == 16
    assert all(value > 0 for value in measured.values())
    assert "archive of 4,000 messages of 100 B" in (tmp_path / "pipeline.md").read_text()
    assert list((tmp_path / "data").iterdir()) == []
