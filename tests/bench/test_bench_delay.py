"""The benchmark of delayed messages works as a whole, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from bench.delay.clients import Received
from bench.delay.run import DelayRun

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("delay")
    command = [sys.executable, "-m", "bench.delay", "--only", "penstock", "--settle", "1"]
    command += ["--pending", "3000", "--rate", "500", "--seconds", "1", "--burst", "2000", "--near", "1000"]
    command += ["--out", str(folder / "out"), "--data", str(folder / "data")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def test_every_figure_of_delayed_messages_is_there_and_none_came_early(report: Path) -> None:
    document = json.loads((report / "out" / "delay.json").read_text())
    assert document["failures"] == []
    asked = DelayRun(pending=3000, rate=500, seconds=1, burst=2000, near=1000)
    assert len(document["figures"]) == len(asked.measures())
    found = {figure["measure"]: figure["targets"]["Penstock"]["median"] for figure in document["figures"]}
    assert found["lateness, 500 due a second: the earliest, by the broker's clock"] >= 0
    assert found["lateness, 500 due a second: max"] >= found["lateness, 500 due a second: p50"] >= 0
    assert found["2,000 due in one second"] > 0


def test_report_of_delayed_messages_names_neither_host_nor_folder(report: Path) -> None:
    for name in ("delay.json", "delay.md"):
        text = (report / "out" / name).read_text()
        assert str(report) not in text and str(ROOT) not in text


def test_the_broker_and_its_data_are_gone_afterwards(report: Path) -> None:
    assert list((report / "data").iterdir()) == []
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(report / "data") in command]


def test_no_two_figures_share_a_row() -> None:
    keys = [measure.key for measure in DelayRun(pending=1, rate=1, seconds=1, burst=1, near=1).measures()]
    assert len(keys) == len(set(keys))


def test_lateness_is_counted_from_the_due_time_to_the_broker_and_to_the_client() -> None:
    found = Received()
    found.add(1000, 1003, 1010)
    found.add(1000, 999, 1001)
    assert (list(found.late_at_broker), list(found.late_at_client)) == ([3, -1], [10, 1])
    assert (found.first_ms, found.last_ms, len(found)) == (1001, 1010, 2)
