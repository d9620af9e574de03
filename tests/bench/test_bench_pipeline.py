"""The benchmark of the pipeline works as a whole, with few records, and without what Maven would have to bring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.class_archive import quick_jvm
from support.programs import required_program

ROOT = Path(__file__).parent.parent.parent


def test_the_pipeline_is_measured_and_reported(tmp_path: Path) -> None:
    required_program("java")
    command = [sys.executable, "-m", "bench.pipeline", "--alone", "--rows", "2000", "--rounds", "1", "--turns", "1"]
    command += ["--growth", "0.002,0.004", "--out", str(tmp_path), "--data", str(tmp_path / "data")]
    env = {**os.environ, "JAVA_TOOL_OPTIONS": quick_jvm()}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=env)
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
