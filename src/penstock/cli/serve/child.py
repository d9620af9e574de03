"""A child process of the supervisor.

Rules:
- It has its own session: Ctrl-C in the terminal reaches only the supervisor, which stops the child.
- The kernel sends it SIGTERM when the supervisor dies, so no child is left behind.
- It is ready when it prints one line on standard output; a process that is not ours is ready when its port answers.
- All calls belong to the event loop that started it; none of them blocks.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from penstock.clock import SystemClock

_LOOK_S = 0.05
_READ_BYTES = 65_536
_PR_SET_PDEATHSIG = 1
# What a shell says of a command that cannot be run.
_CANNOT_RUN = 127
# Told to stop, and stopped: by itself, before it could listen to signals, or as Java does.
_ORDERLY = frozenset({0, -signal.SIGTERM, 128 + signal.SIGTERM})


class Child:
    """Starts with `start`, also after it has ended; logs to a file, or to our standard error."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path | None = None, port: int | None = None) -> None:
        """`port` is the loopback port of a process that does not announce that it is ready."""
        self.name = name
        self.command = list(command)
        self.log = log
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._clock = SystemClock()
        self._served_ms: float | None = None
        self.serving: asyncio.Future[str]
        """Done when it is ready, with the line that it printed; cancelled if it ends before."""
        self.ended: asyncio.Future[int]
        """Done when it has ended, with its exit status, or the negative number of the signal that ended it."""

    @property
    def is_alive(self) -> bool:
        return self._process is not None and not self.ended.done()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_alive else None

    @property
    def has_ended_in_order(self) -> bool:
        return not self.is_alive and (self._process is None or self.ended.result() in _ORDERLY)

    @property
    def up_ms(self) -> float:
        """How long it has been ready; 0 if it never was."""
        return 0.0 if self._served_ms is None else self._clock.monotonic_ms() - self._served_ms

    def start(self) -> None:
        """A process that cannot be started counts as ended."""
        assert not self.is_alive
        loop = asyncio.get_running_loop()
        self.ended, self._served_ms = loop.create_future(), None
        try:
            self._process = self._spawn()
        except OSError:
            self.serving = loop.create_future()
            self._end(_CANNOT_RUN)
            return
        self.serving = loop.create_future() if self._port is None else loop.create_task(self._answers(self._port))
        self.serving.add_done_callback(self._note_serving)
        end = os.pidfd_open(self._process.pid)
        loop.add_reader(end, self._reap, end, self._process)
        if self._process.stdout is not None:
            loop.add_reader(self._process.stdout, self._listen, self._process.stdout, bytearray())

    def stop(self) -> None:
        """Sends SIGTERM. Calling it twice, or after the end, is allowed."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL. Calling it twice, or after the end, is allowed."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_alive:
            self._process.send_signal(number)

    def _spawn(self) -> subprocess.Popen[bytes]:
        errors = None if self.log is None else self.log.open("ab")
        try:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._port is None else errors,
                stderr=errors,
                start_new_session=True,
                # Safe because this process has one thread.
                preexec_fn=dying_with(os.getpid()),
            )
        finally:
            if errors is not None:
                errors.close()

    def _reap(self, end: int, process: subprocess.Popen[bytes]) -> None:
        asyncio.get_running_loop().remove_reader(end)
        os.close(end)
        self._end(process.wait())

    def _end(self, status: int) -> None:
        self.ended.set_result(status)
        self.serving.cancel()

    def _listen(self, output: IO[bytes], heard: bytearray) -> None:
        """Reads to the end of the output, so that later prints of the child do not fail."""
        said = os.read(output.fileno(), _READ_BYTES)
        if not said:
            asyncio.get_running_loop().remove_reader(output)
            output.close()
        elif not self.serving.done():
            heard += said
            line, newline, _ = heard.partition(b"\n")
            if newline:
                self.serving.set_result(line.decode())

    def _note_serving(self, serving: asyncio.Future[str]) -> None:
        if not serving.cancelled():
            self._served_ms = self._clock.monotonic_ms()

    async def _answers(self, port: int) -> str:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(_LOOK_S)
            else:
                writer.close()
                return ""


def dying_with(parent: int) -> Callable[[], None]:
    """What the new process does first: it asks the kernel for a SIGTERM at its parent's death."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have died before prctl took effect.
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return prepare
