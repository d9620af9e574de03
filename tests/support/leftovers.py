"""Processes that tests have started, found by a mark in their environment: also those whose parent has ended."""

from __future__ import annotations

import os
from pathlib import Path

MARK = "PYTEST_LEFTOVER_MARK"
"""Not one of Penstock's names: those are taken out of the environment of what tests start."""


def marked(mark: str) -> dict[int, str]:
    """Command lines by process id of all that run with this mark, except the process that asks."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
    return found
