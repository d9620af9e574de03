"""Programs that tests run: ours from the environment the tests run in, others if they are installed."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pytest

from support.fork_server import ForkedProcess, ForkServer

PENSTOCK = str(Path(sysconfig.get_path("scripts")) / "penstock")

_RUN_S = 60

Process = subprocess.Popen[bytes] | ForkedProcess

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
    """Ours without any setting of Penstock that the person running the tests may have exported.

    Also without the variable that keeps Python from writing bytecode: each of the many processes would compile the
    package again, which takes it longer than all the rest of its start.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | {"COLUMNS": "200", "NO_COLOR": "1"} | dict(more or {})


_fork_servers: list[ForkServer] = []


@contextmanager
def forking() -> Iterator[None]:
    """Until the end, processes of ours are forked where that makes no difference to them."""
    _fork_servers.append(ForkServer(environment()))
    try:
        yield
    finally:
        _fork_servers.pop().stop()


def start(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes],
    stderr: IO[bytes],
    folder: Path = Path("."),
    new_session: bool = False,
) -> Process:
    """Starts a command that ends with us, in a folder. `env` is what its environment has beside ours."""
    arguments = _forkable(command)
    # Another variable may be for the interpreter, or for the linker.
    if _fork_servers and arguments and all(name.startswith("PENSTOCK_") for name in env or ()):
        with open(os.devnull, "rb") as nothing:
            streams = ((stdin or nothing).fileno(), stdout.fileno(), stderr.fileno())
            return _fork_servers[-1].start(arguments, environment(env), streams, folder=folder, new_session=new_session)
    return subprocess.Popen(
        dying_with_us(command),
        stdin=stdin or subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=environment(env),
        cwd=folder,
        start_new_session=new_session,
    )


def _forkable(command: Sequence[str]) -> Sequence[str]:
    """What the fork server is to run: `penstock`, or a Python file without options of the interpreter; else nothing."""
    if command[0] == PENSTOCK:
        return command
    is_file = command[0] == sys.executable and len(command) > 1 and command[1].endswith(".py")
    return command[1:] if is_file else ()


def run(
    command: Sequence[str], stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end, with its output collected."""
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(stdin)
        given.seek(0)
        process = start(command, env, stdin=given, stdout=output, stderr=errors)
        try:
            status = process.wait(_RUN_S)
        finally:
            process.kill()
            process.wait()
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(command, status, output.read(), errors.read())


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
