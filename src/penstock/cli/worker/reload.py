"""`--reload`: a process that starts the worker as its child, and starts it again when a source file changes.

It looks at the times of files instead of asking the kernel, which needs no library and works on every file system. A
worker that has ended, for an error in the application as a rule, is started again with the next change.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from penstock.cli.failure import CommandError
from penstock.cli.serve.child import dying_with
from penstock.cli.worker.stop_signals import StopSignals

LOOK_S = 0.5
"""How often files are looked at."""
MAX_FILES = 10_000
"""A folder with more files is no application: the command was started in the wrong folder."""
KILL_AFTER_S = 10.0
"""How much longer than its grace period a worker may take to stop."""
_SKIPPED = frozenset({"__pycache__", "node_modules"})

FileTimes = Mapping[str, tuple[int, int]]
"""Modification time and size, by path."""


def file_times(folder: Path) -> FileTimes:
    """The `.py` files below a folder, without hidden folders and virtual environments. Raises `CommandError`."""
    found: dict[str, tuple[int, int]] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        ]
        for name in names:
            if not name.endswith(".py"):
                continue
            path = os.path.join(place, name)
            try:
                status = os.stat(path)
            except OSError:
                # Deleted since it was listed, or a link to nothing.
                continue
            found[path] = (status.st_mtime_ns, status.st_size)
            if len(found) > MAX_FILES:
                raise CommandError(
                    f"--reload: there are more than {MAX_FILES} .py files below {folder}; start the worker in the "
                    "folder of the application"
                )
    return found


def changed_files(before: FileTimes, after: FileTimes) -> list[str]:
    """Files that were changed, added or removed."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


class ReloadedWorker:
    """The child process."""

    def __init__(self, command: Sequence[str], grace_s: float) -> None:
        self._command = list(command)
        self._wait_s = grace_s + KILL_AFTER_S
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # A session of its own: Ctrl-C in the terminal reaches us only, and we stop it.
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=dying_with(os.getpid())
        )

    def ended(self) -> int | None:
        """The status with which it has ended, told once; None if it runs, or was told."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        self._process = None
        return status

    def stop(self) -> None:
        """As a signal would: let handlers finish."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self._wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """Does not wait for its end, and so can be called by a signal handler."""
        if self._process is not None:
            self._process.kill()


def run_reloading(arguments: Sequence[str], folder: Path, grace_s: float) -> None:
    """Until a signal comes. `arguments` are those of `penstock worker`, without `--reload`."""
    worker = ReloadedWorker([sys.executable, "-m", "penstock", "worker", *arguments], grace_s)
    signals = StopSignals(at_once=worker.kill)
    known = file_times(folder)
    _say(f"watching {len(known)} .py files below {folder}")
    worker.start()
    while not signals.asked.wait(LOOK_S):
        if (status := worker.ended()) is not None:
            _say(f"the worker ended with status {status}; it starts again when a file changes")
        now = file_times(folder)
        if changed := changed_files(known, now):
            _say(f"{os.path.relpath(changed[0], folder)} has changed; starting the worker again")
            known = now
            worker.stop()
            worker.start()
    worker.stop()


def _say(text: str) -> None:
    typer.echo(f"penstock: {text}", err=True)
