"""What each test file takes, in wall-clock and CPU seconds, as `--record-durations` has last written it down.

The CPU time of a file includes the processes that its tests start: brokers, ZooKeeper, Spark. A shared broker counts
for the file that runs while it works.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[1] / "durations.json"

_WORKER_OUTPUT = "durations"
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Duration:
    wall_s: float
    cpu_s: float

    @property
    def cores(self) -> float:
        """How many cores it keeps busy on average."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


UNKNOWN = Duration(wall_s=10.0, cpu_s=5.0)
"""Taken for a file that nobody has measured."""


def recorded(path: Path = RECORDED) -> dict[str, Duration]:
    """By file, as pytest names it."""
    if not path.exists():
        return {}
    return {file: Duration(*pair) for file, pair in json.loads(path.read_text()).items()}


def write(durations: Mapping[str, Duration], path: Path = RECORDED) -> None:
    """One line a file, in order, so that a diff shows what has become slower."""
    lines = [f'  "{file}": [{found.wall_s:.1f}, {found.cpu_s:.1f}]' for file, found in sorted(durations.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


class Recorder:
    """Measures files in the process that runs them; in the process that the workers report to, it collects them."""

    def __init__(self) -> None:
        self._measured: dict[str, Duration] = {}
        self._file = ""
        self._begun_at_s = 0.0
        self._cpu_before_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        file = file_of(item.nodeid)
        if file != self._file:
            self._file, self._begun_at_s, self._cpu_before_s = file, time.monotonic(), tree_cpu_s(os.getpid())
        result = yield
        if nextitem is None or file_of(nextitem.nodeid) != file:
            wall_s = time.monotonic() - self._begun_at_s
            self._measured[file] = Duration(wall_s, tree_cpu_s(os.getpid()) - self._cpu_before_s)
            self._file = ""
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        for file, pair in getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT, {}).items():
            self._measured[file] = Duration(*pair)

    @pytest.hookimpl
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_WORKER_OUTPUT] = {file: (found.wall_s, found.cpu_s) for file, found in self._measured.items()}
            return
        root = session.config.rootpath
        kept = {file: found for file, found in recorded().items() if (root / file).exists()}
        write(kept | self._measured)


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def tree_cpu_s(root: int) -> float:
    """CPU time of a process and of all its descendants, also of those that have ended and were waited for."""
    parents, times = {}, {}
    for pid, fields in _processes():
        parents[pid] = int(fields[1])
        times[pid] = sum(map(int, fields[11:15])) / _CLOCK_TICKS
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        total += times.get(pid, 0.0)
        waiting += children.get(pid, ())
    return total


def _processes() -> Iterable[tuple[int, list[str]]]:
    """The fields of /proc/PID/stat behind the name, which is in brackets and may contain anything."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            yield int(entry.name), stat.rpartition(")")[2].split()
