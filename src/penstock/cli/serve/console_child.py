"""The console beside a broker: a process of its own, so that neither waits for the other."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

_STOP_S = 10.0


class ConsoleChild:
    """Starts once the broker is ready, tells when the console is, and ends with the broker.

    The child asks the kernel to be stopped with this process (`--supervised`).
    """

    def __init__(self, data: Path, port: int, tell: Callable[[str], None], lake: str | None = None) -> None:
        self._data = data
        self._port = port
        self._tell = tell
        self._lake = lake
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def start(self, kafka: str) -> None:
        """Returns at once."""
        command = [sys.executable, "-m", "penstock", "console", "--supervised", "--cluster", f"local={kafka}"]
        command += ["--data", str(self._data / "console"), "--port", str(self._port)]
        if self._lake is not None:
            command += ["--lake", f"local={self._lake}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        threading.Thread(target=self._listen, args=(self._process,), name="console-child", daemon=True).start()

    def stop(self) -> None:
        """Returns when it has ended."""
        self._is_stopped = True
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._tell(f"  console         {line.strip()}   (signs you in once)")
        status = process.wait()
        if status and not self._is_stopped:
            self._tell(f"The console ended with status {status}; the broker goes on without it.")
