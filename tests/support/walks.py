"""Walks through the code: what ARCHITECTURE.md says of them, and which modules a process really entered."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from support.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"

_TRACER = ROOT / "tests" / "support" / "tracer"
_MODULE = re.compile(r"`((?:[a-z0-9_]+/)*[a-z0-9_]+\.py)`")


def written_walk(title: str) -> list[str]:
    """The modules that the page names under this heading, in the order in which it first names them."""
    text = PAGE.read_text()
    _, found, after = text.partition(f"\n### {title}\n")
    assert found, f"{PAGE.name} has no walk {title!r}"
    section = re.split(r"\n#{2,3} ", after, maxsplit=1)[0]
    return list(dict.fromkeys(_MODULE.findall(section)))


def passed_by_all() -> list[str]:
    """Modules and rooms that the page leaves out of the walks."""
    text = PAGE.read_text()
    _, found, after = text.partition("\n**Left out of the walks**")
    assert found
    return re.findall(r"`([a-z0-9_/.]+)`", after.partition("\n\n")[0])


class Trace:
    """The modules that traced processes enter, one file a process."""

    def __init__(self, folder: Path, *doors: str) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        path = os.pathsep.join([str(_TRACER), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self.env = {"TRACE_FOLDER": str(folder), "TRACE_DOORS": ",".join(doors), "PYTHONPATH": path}
        """What a process to be traced has in its environment."""

    def begin(self, pid: int) -> None:
        """What the process has entered so far does not count."""
        file = self._folder / str(pid)
        file.write_text("x\n")
        os.kill(pid, signal.SIGUSR1)
        until(lambda: not file.read_text().startswith("x"), "the process traces anew")

    def entered(self, *pids: int) -> list[str]:
        """The modules that these processes, or all, have entered, in the order of time."""
        files = [self._folder / str(pid) for pid in pids] or list(self._folder.iterdir())
        lines = [line.split() for file in files for line in file.read_text().splitlines()]
        return list(dict.fromkeys(module for _, module in sorted((int(at), module) for at, module in lines)))


def shown(modules: Iterable[str], left_out: Sequence[str]) -> list[str]:
    """Without what the page leaves out: whole rooms end with a slash."""
    return [
        module
        for module in modules
        if not any(module.startswith(each) if each.endswith("/") else module == each for each in left_out)
    ]
