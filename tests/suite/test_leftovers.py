"""Processes that outlive their tests are found, and so is one whose parent has ended before it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

from support.leftovers import MARK, marked
from support.waiting import until

WAITS = "import signal; print('ready', flush=True); signal.pause()"


def test_a_process_is_found_until_it_ends() -> None:
    mark = uuid.uuid4().hex
    assert marked(mark) == {}
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, env={**os.environ, MARK: mark})
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert list(marked(mark)) == [process.pid]
        assert "signal.pause" in marked(mark)[process.pid]
    finally:
        process.kill()
        process.communicate()
    assert marked(mark) == {}


def test_a_process_is_found_whose_parent_has_ended() -> None:
    mark = uuid.uuid4().hex
    orphaned = f"""
import os, subprocess, sys
nowhere = subprocess.DEVNULL
print(subprocess.Popen([sys.executable, "-c", {WAITS!r}], stdout=nowhere, stderr=nowhere).pid, flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", orphaned], capture_output=True, env={**os.environ, MARK: mark}, check=True
    )
    pid = int(done.stdout)
    try:
        assert list(marked(mark)) == [pid]
    finally:
        os.kill(pid, signal.SIGKILL)
    until(lambda: marked(mark) == {}, "it has ended")
