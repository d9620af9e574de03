"""`penstock worker` as its users run it: a process of its own, in the folder of an application."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.programs import PENSTOCK, start
from support.waiting import until

_STOP_S = 60


class WorkerProcess:
    """Its output is in files, so that a test can look at it while it runs."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._output, self._errors = folder / "stdout", folder / "stderr"
        with self._output.open("ab") as output, self._errors.open("ab") as errors:
            self._process = start(
                [PENSTOCK, "worker", *arguments], stdout=output, stderr=errors, folder=folder, new_session=True
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def log(self) -> str:
        return self._errors.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, text: str) -> None:
        def said() -> bool:
            return text in self.output or text in self.log

        until(lambda: said() or self._process.poll() is not None, f"the worker says {text!r}")
        assert said(), f"the worker ended without saying {text!r}:\n{self.output}\n{self.log}"

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """The exit status, once it has ended."""
        return self._process.wait(_STOP_S)

    def stop(self) -> None:
        self.signal()
        assert self.ended() == 0, self.log

    def kill(self) -> None:
        """As a crash would. Killing twice is allowed."""
        self._process.kill()
        self._process.wait()


@contextmanager
def working(folder: Path, *arguments: str) -> Iterator[WorkerProcess]:
    process = WorkerProcess(folder, *arguments)
    try:
        yield process
    except BaseException as error:
        error.add_note(f"penstock worker said:\n{process.output[-4000:]}\n{process.log[-4000:]}")
        raise
    finally:
        process.kill()
