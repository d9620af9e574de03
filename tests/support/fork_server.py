"""Starts our commands with the package already imported, which is most of what a broker computes at its start.

One process a test worker imports the package, and forks for each request: the new process gets the arguments, the
environment, the folder, the standard streams and the limit of open files that `subprocess` would give it, and runs the
same `main` until its threads and exit functions have ended. What only a new interpreter shows (a library that is
missing or preloaded, the memory of a broker, its own end) has to be started without it.

A Python file of the tests, such as a member of a group, is run likewise, with the clients of Kafka imported.

A request is one packet: the process as JSON, with its standard streams and a pipe. Through the pipe come the process id
and, when the process has ended, its wait status.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

_NUMBER = struct.Struct("i")
_REQUEST_BYTES = 1 << 20
_STREAMS = 3
_PR_SET_PDEATHSIG = 1
_OPEN_FILES = 1024
"""More than the fork server has open: its standard streams, and four or fewer for each process."""
_LEFT_OUT = (
    "penstock.aio",
    "penstock.brokerless",
    "penstock.cli.pipeline",
    "penstock.console",
    "penstock.direct",
    "penstock.pipeline",
    "penstock.push",
    "penstock.sdk.dedup",
    "penstock.testing",
)
"""Not imported beforehand: few commands need them, and all would have to tear them down at their end. Spark and
Arrow also start threads, which do not fork.
"""
_LIBRARIES = ("confluent_kafka.admin", "kazoo.client", "psycopg", "pymysql.cursors", "rich.table")
"""Imported beforehand too: modules of ours import them only when they need them."""
_CLIENTS = ("aiokafka", "kafka")
"""Imported before the first program of the tests is started."""


class ForkedProcess:
    """A process that the fork server has started, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: Sequence[str], pid: int, status: int) -> None:
        self.args = list(arguments)
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        found = self._look(None if timeout is None else timeout * 1000)
        if found is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return found

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_ms: float | None) -> int | None:
        """The exit status as `subprocess` gives it; None if the process still runs after this time."""
        with self._lock:
            if self.returncode is None:
                ready = select.poll()
                ready.register(self._status, select.POLLIN)
                if ready.poll(timeout_ms):
                    # Without its fork server it was killed.
                    told = _read_number(self._status)
                    self.returncode = -signal.SIGKILL if told is None else os.waitstatus_to_exitcode(told)
                    os.close(self._status)
            return self.returncode


class ForkServer:
    """Starts with the first request; ends with `stop` or with us, and with it all that it has started."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        streams: tuple[int, int, int],
        *,
        folder: Path,
        new_session: bool,
    ) -> ForkedProcess:
        """Runs `penstock`, or a Python file, with these arguments, of which the first is the program; `streams` are
        open files.
        """
        request = {
            "arguments": list(arguments),
            "environment": dict(env),
            "folder": str(folder.absolute()),
            "new_session": new_session,
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        data = json.dumps(request).encode()
        assert len(data) <= _REQUEST_BYTES
        status, tell = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._started(), [data], [*streams, tell])
        finally:
            os.close(tell)
        pid = _read_number(status)
        assert pid is not None, "the fork server has ended"
        return ForkedProcess(arguments, pid, status)

    def stop(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait()
            self._control = self._process = None

    def _started(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=dict(self._environment),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        return self._control


def _read_number(pipe: int) -> int | None:
    """None if there is nothing more to read."""
    data = os.read(pipe, _NUMBER.size)
    return _NUMBER.unpack(data)[0] if data else None


def _import_everything() -> None:
    import penstock

    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.startswith(_LEFT_OUT) and not module.name.endswith("__main__"):
            import_module(module.name)
    for name in _LIBRARIES:
        import_module(name)
    # A collection in a forked process would look at, and so copy, everything that was imported.
    gc.freeze()


@functools.cache
def _import_clients() -> None:
    for name in _CLIENTS:
        import_module(name)
    gc.freeze()


def _is_file(program: str) -> bool:
    return program.endswith(".py")


def _forked(control: socket.socket) -> bool:
    """Forks for each request. True in a process that is to run its command, False when no more requests come."""
    children: dict[int, int] = {}
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    ready = select.poll()
    ready.register(control, select.POLLIN)
    ready.register(woken, select.POLLIN)
    while True:
        asked = dict(ready.poll())
        if woken in asked:
            os.read(woken, 4096)
            while children:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                _tell(children.pop(pid), status, is_last=True)
        if control.fileno() in asked:
            data, files, _, _ = socket.recv_fds(control, _REQUEST_BYTES, _STREAMS + 1)
            if not data:
                return False
            *streams, pipe = files
            wanted = json.loads(data)
            if _is_file(wanted["arguments"][0]):
                _import_clients()
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.detach()
                _become(wanted, streams, parent)
                return True
            children[pid] = pipe
            for stream in streams:
                os.close(stream)
            _tell(pipe, pid)


def _tell(pipe: int, number: int, *, is_last: bool = False) -> None:
    try:
        os.write(pipe, _NUMBER.pack(number))
    except BrokenPipeError:
        # The test does not want to know any more.
        pass
    if is_last:
        os.close(pipe)


def _become(request: Mapping[str, object], streams: Sequence[int], parent: int) -> None:
    """This process becomes what `subprocess` and a new interpreter would have made."""
    arguments, environment = request["arguments"], request["environment"]
    assert isinstance(arguments, list) and isinstance(environment, dict)
    # It ends with its parent, as the parent ends with the tests.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(_STREAMS, _OPEN_FILES)
    if request["new_session"]:
        os.setsid()
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["open_files"]))  # type: ignore[arg-type]
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    sys.orig_argv[:] = [sys.executable, *arguments]


def _end(status: int) -> None:
    """Threads end and exit functions run as in an interpreter. What follows there, to take every module apart, would
    copy the memory that is shared, and take as long as a broker does to start.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    # The folder of this file is not among those of a command.
    del sys.path[0]
    _import_everything()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        is_child = _forked(requests)
    if is_child:
        try:
            if _is_file(sys.argv[0]):
                runpy.run_path(sys.argv[0], run_name="__main__")
            else:
                from penstock.cli.main import main

                main()
        except SystemExit as end:
            if end.code is not None and not isinstance(end.code, int):
                raise
            _end(end.code or 0)
        _end(0)
