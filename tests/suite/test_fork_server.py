"""A forked command is like one that was started: what it is given, what it prints, how it ends."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.fork_server import ForkedProcess, ForkServer
from support.programs import PENSTOCK, environment, forking, run, start
from support.waiting import until


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "broker")
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.mark.parametrize(
    "command", [["--version"], ["topic", "lst"], ["config", "--json"], ["dump", "nowhere"], ["topic", "--help"]]
)
def test_it_prints_and_returns_what_a_new_interpreter_does(command: list[str]) -> None:
    new = subprocess.run([PENSTOCK, *command], capture_output=True, env=environment(), check=False)
    forked = run([PENSTOCK, *command])
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_it_has_its_own_environment_and_input(serving: BrokerProcess, topic: str) -> None:
    named = {"PENSTOCK_BOOTSTRAP": serving.kafka}
    assert run([PENSTOCK, "topic", "create", topic], env=named).returncode == 0
    assert run([PENSTOCK, "send", topic], b"one\ntwo\n", env=named).returncode == 0
    assert run([PENSTOCK, "tail", topic, "--format", "%v"], env=named).stdout == b"one\ntwo\n"
    assert "PENSTOCK_BOOTSTRAP" not in os.environ


def test_it_has_a_session_and_the_limit_of_open_files_of_its_starter(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        broker = BrokerProcess(tmp_path)
        broker.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        assert isinstance(broker._process, ForkedProcess)
        assert os.getsid(broker.pid) == broker.pid
        assert f" {soft - 1} " in Path(f"/proc/{broker.pid}/limits").read_text().partition("Max open files")[2]
    finally:
        broker.kill()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_its_end_is_told_once_it_has_ended(tmp_path: Path, number: signal.Signals, status: int) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    process = broker._process
    assert process is not None
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(number)
    assert process.wait(30) == process.poll() == process.returncode == status
    process.kill()


def is_running(pid: int) -> bool:
    """A process that has ended may stay as a zombie for as long as the one that adopted it likes."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_it_ends_with_the_fork_server(tmp_path: Path) -> None:
    with forking():
        broker = BrokerProcess(tmp_path)
        broker.start()
        process, pid = broker._process, broker.pid
    assert isinstance(process, ForkedProcess)
    assert process.wait(30) == -signal.SIGKILL
    until(lambda: not is_running(pid), "it has ended")


def test_a_variable_for_the_interpreter_gets_a_new_one(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, env={"PYTHONHASHSEED": "7"})
    broker.start()
    try:
        assert isinstance(broker._process, subprocess.Popen)
    finally:
        broker.kill()


_PROGRAM = """
import atexit, os, sys
from neighbour import GREETING
atexit.register(lambda: print("at exit"))
if __name__ == "__main__":
    print(GREETING, *sys.argv[1:], os.getcwd(), os.environ.get("PENSTOCK_X"), sys.stdin.read())
    if len(sys.argv) > 1:
        sys.exit(int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])
"""


_WAITING = """
import signal, sys
print("begun", "penstock.broker" in sys.modules, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("argument", ["0", "3", "in words", None])
def test_a_python_file_runs_and_ends_as_in_a_new_interpreter(tmp_path: Path, argument: str | None) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    (tmp_path / "neighbour.py").write_text("GREETING = 'hello'\n")
    words = [sys.executable, str(program), *([argument] if argument else [])]
    env = {"PENSTOCK_X": "y"}
    new = subprocess.run(words, input=b"in", capture_output=True, env=environment(env), check=False)
    forked = run(words, b"in", env)
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_a_python_file_is_forked_and_can_be_killed(tmp_path: Path) -> None:
    program, said = tmp_path / "program.py", tmp_path / "said"
    program.write_text(
        "import signal, sys\nprint('begun', 'penstock.broker' in sys.modules, flush=True)\nsignal.pause()\n"
    )
    with said.open("wb") as output:
        process = start([sys.executable, str(program)], stdout=output, stderr=output)
    try:
        assert isinstance(process, ForkedProcess)
        until(lambda: said.read_text() == "begun True\n", "it runs")
    finally:
        process.kill()
    assert process.wait(30) == -signal.SIGKILL


def test_a_fork_server_that_nothing_was_asked_of_can_be_stopped() -> None:
    ForkServer(environment()).stop()
