"""Programs that tests run: ours from the environment the tests run in, others if they are installed."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

PENSTOCK = str(Path(sysconfig.get_path("scripts")) / "penstock")

_RUN_S = 60


_TOOLS = Path(sys.prefix) / "tools" / "usr" / "bin"
"""Programs of Debian packages that `make setup-test` unpacks and does not install: they would run as services."""


def required_program(name: str) -> str:
    """The path of an installed program; without it the test is skipped at a desk and fails in CI."""
    found = shutil.which(name) or shutil.which(name, path=str(_TOOLS))
    if found is not None:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name} is not installed, and CI has to run what needs it")
    pytest.skip(f"{name} is not installed")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours without any setting of Penstock that the person running the tests may have exported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return kept | {"COLUMNS": "200", "NO_COLOR": "1"} | dict(more or {})


def run(
    command: Sequence[str], stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end, with its output collected."""
    return subprocess.run(command, input=stdin, capture_output=True, timeout=_RUN_S, env=environment(env), check=False)


def dying_with_us(command: Sequence[str]) -> list[str]:
    """The command, made to end with the test run even if that is killed and cannot clean up."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else list(command)


def in_terminal(command: Sequence[str], typed: str) -> tuple[int, str]:
    """Runs a command in a terminal in which somebody types; its exit status, and all that the screen has shown."""
    ours, its = pty.openpty()
    try:
        process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment(), close_fds=True)
        os.close(its)
        os.write(ours, typed.encode())
        shown = b""
        try:
            while piece := os.read(ours, 65_536):
                shown += piece
        except OSError:
            # Linux says so when the last one who had the terminal has gone.
            pass
        return process.wait(_RUN_S), shown.decode().replace("\r\n", "\n")
    finally:
        os.close(ours)
