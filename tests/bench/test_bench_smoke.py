"""The benchmark works from its command line: it starts a broker, asks every kind of case, and stops it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "bench", "--smoke", "--out", str(folder / "out")]
    command += ["--data", str(folder / "data")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def test_every_case_yields_figures_for_penstock(report: Path) -> None:
    document = json.loads((report / "out" / "latest.json").read_text())
    assert document["failures"] == []
    empty = [figure["measure"] for figure in document["figures"] if "Penstock" not in figure["targets"]]
    assert empty == []
    speeds = [figure for figure in document["figures"] if figure["better"] == "higher"]
    assert speeds
    assert all(figure["targets"]["Penstock"]["median"] > 0 for figure in speeds)


def test_report_has_table_and_picture(report: Path) -> None:
    table = (report / "out" / "latest.md").read_text()
    assert "| produce 1 KiB, 2 partitions | MB/s |" in table
    assert "| rebalance, 5 bare members, 20 partitions, classic protocol: one more | ms |" in table
    assert "| offset commits of 2 partitions, 3 groups, 5 in flight each | commits/s |" in table
    assert "| transactions of 1 message, 2 producers | transactions/s |" in table
    assert "| produce 1 KiB, 2 partitions, TLS | MB/s |" in table
    assert "| end to end, 200 msg/s of 1024 B, TLS: p99 | ms |" in table
    assert "<svg" in (report / "out" / "latest.svg").read_text()


def test_report_names_neither_host_nor_folder(report: Path) -> None:
    text = (report / "out" / "latest.json").read_text()
    assert str(report) not in text
    assert str(ROOT) not in text


def test_broker_and_its_data_are_gone_afterwards(report: Path) -> None:
    data = str(report / "data")
    assert list((report / "data").iterdir()) == []
    alive = [process.pid for process in psutil.process_iter(["cmdline"]) if data in _command(process)]
    assert alive == []


def _command(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or ())
