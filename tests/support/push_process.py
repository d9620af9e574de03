"""`penstock push` as its users run it: a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.programs import PENSTOCK, dying_with_us, environment

_STOP_S = 40


class PushProcess:
    """Ends with `stop` (SIGTERM), which gives its counts, or with `kill`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = folder / "stderr"
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                dying_with_us([PENSTOCK, "push", "--json", *arguments]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._errors.read_text(errors="replace")

    def stop(self) -> Any:
        self._process.send_signal(signal.SIGTERM)
        output, _ = self._process.communicate(timeout=_STOP_S)
        assert self._process.returncode == 0, self.log
        assert "Traceback" not in self.log, self.log
        return json.loads(output)

    def kill(self) -> None:
        """As a crash would. Killing twice is allowed."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def pushing(folder: Path, *arguments: str) -> Iterator[PushProcess]:
    process = PushProcess(folder, *arguments)
    try:
        yield process
    except BaseException as error:
        error.add_note(f"penstock push said:\n{process.log[-4000:]}")
        raise
    finally:
        process.kill()
