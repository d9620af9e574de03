"""The console as operators run it: a process of its own on a free loopback port, with its state in a folder."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.programs import PENSTOCK, dying_with_us, environment
from support.waiting import until

_STOP_S = 30
_LOGIN_LINE = re.compile(r"^\s*(http://\S+)/login\?token=(\S+)$", re.MULTILINE)


class ConsoleProcess:
    """Starts with `start`, ends with `stop` or `kill`."""

    def __init__(self, folder: Path, cluster: str, bootstrap: str, options: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / "stdout"
        self._errors = folder / "stderr"
        self._command = [PENSTOCK, "console", "--cluster", f"{cluster}={bootstrap}", "--port", "0"]
        self._command += ["--data", str(folder / "data"), "--poll", "1s", *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self.token = ""

    @property
    def login(self) -> str:
        """The address that signs in as admin, once."""
        return f"{self.address}/login?token={self.token}"

    @property
    def log(self) -> str:
        return self._errors.read_text(errors="replace") if self._errors.exists() else ""

    def start(self) -> ConsoleProcess:
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                dying_with_us(self._command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment(),
                start_new_session=True,
            )

        def announced() -> re.Match[str] | None:
            assert self._process is not None
            said = self._output.read_text()
            if self._process.poll() is not None:
                raise AssertionError(f"the console did not start:\n{said}{self.log}")
            return _LOGIN_LINE.search(said)

        try:
            found = until(announced, "the console says that it is ready")
        except BaseException:
            self.kill()
            raise
        assert found is not None
        self.address, self.token = found[1], found[2]
        return self

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the console did not stop on SIGTERM:\n{self.log}") from None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
