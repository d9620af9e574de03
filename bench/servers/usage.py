"""Processes and all their children: their CPU time, resident memory, and end."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

_PROCESS_CLOCK = 2


def members(pid: int) -> list[psutil.Process]:
    """The process and its children, root first; empty if it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(*pids: int) -> float:
    """User plus system seconds so far."""
    total = 0.0
    for member in (member for pid in pids for member in members(pid)):
        with suppress(psutil.NoSuchProcess, OSError):
            times = member.cpu_times()
            # A child that ended meanwhile is in its parent's children times.
            total += _clock_s(member.pid) + times.children_user + times.children_system
    return total


def _clock_s(pid: int) -> float:
    """To the nanosecond, where /proc counts ticks of 10 ms. The number of the clock is made as in glibc."""
    return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)


def rss_mb(*pids: int) -> float:
    """Resident memory in MB (10^6 bytes)."""
    total = 0
    for member in (member for pid in pids for member in members(pid)):
        with suppress(psutil.NoSuchProcess):
            total += member.memory_info().rss
    return total / 1e6


def end(family: list[psutil.Process], grace_s: float) -> None:
    """Kill what is left; psutil knows a process by its start time too, so a reused id is left alone."""
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=grace_s)
