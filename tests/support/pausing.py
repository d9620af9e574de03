"""Processes that are stopped by a signal and go on by another."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from support.waiting import until

ENDED = frozenset({"Z", "X"})
"""Ended, and not looked at by its parent yet."""
_STOPPED = frozenset({"T", *ENDED})


def pause(*pids: int) -> None:
    """Returns when they do nothing any more: the threads of a process stop one by one, on a busy machine much later."""
    send(pids, signal.SIGSTOP)
    until(lambda: all(thread_states(pid) <= _STOPPED for pid in pids), "the process is paused")


def resume(*pids: int) -> None:
    send(pids, signal.SIGCONT)


def thread_states(pid: int) -> set[str]:
    """The states of a process's threads; none if it is gone."""
    found = set()
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            # The state follows the name, which is in brackets.
            found.add(status.read_text().rpartition(")")[2].split()[0])
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Some of them may have ended meanwhile."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
