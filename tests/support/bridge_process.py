"""`penstock delay-bridge` as its users run it: a process of its own."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.programs import PENSTOCK, Process, start
from support.waiting import until

_STOP_S = 40
_HTTP_LINE = re.compile(r"^  health, metrics http://(\S+)$", re.MULTILINE)


class BridgeProcess:
    """Starts with `start`, ends with `stop` (SIGTERM) or `kill` (SIGKILL), and can be started again after either."""

    def __init__(self, folder: Path, *arguments: str, database: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._output, self._errors = folder / "stdout", folder / "stderr"
        self._arguments = ["--http", "127.0.0.1:0", *arguments]
        if database is not None:
            (folder / "databases").write_text(database)
            self._arguments += ["--database-file", str(folder / "databases")]
        self._process: Process | None = None
        self._said_before = 0

    @property
    def log(self) -> str:
        return self._errors.read_text(errors="replace") if self._errors.exists() else ""

    @property
    def output(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> BridgeProcess:
        """Starts without waiting."""
        assert not self.is_alive
        self._said_before = len(self.output)
        with self._output.open("ab") as output, self._errors.open("ab") as errors:
            self._process = start(
                [PENSTOCK, "delay-bridge", *self._arguments], stdout=output, stderr=errors, new_session=True
            )
        return self

    def start(self) -> BridgeProcess:
        """Returns when the bridge says that it runs."""
        self.launch()
        until(lambda: self._address() or not self.is_alive, "the bridge says that it runs")
        assert self.is_alive, f"the bridge did not start:\n{self.log[-4000:]}"
        return self

    def stop(self) -> str:
        """The last line that it prints."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(_STOP_S) == 0, self.log[-4000:]
        assert "Traceback" not in self.log, self.log[-4000:]
        return self.output.splitlines()[-1]

    def kill(self) -> None:
        """As a crash would. Killing twice is allowed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def get(self, path: str) -> str:
        address = self._address()
        assert address is not None
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as response:
            body: bytes = response.read()
        return body.decode()

    def get_json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def _address(self) -> str | None:
        found = _HTTP_LINE.search(self.output, self._said_before)
        return None if found is None else found[1]


@contextmanager
def bridging(folder: Path, *arguments: str, database: str | None = None) -> Iterator[BridgeProcess]:
    process = BridgeProcess(folder, *arguments, database=database)
    try:
        yield process.start()
    except BaseException as error:
        error.add_note(f"penstock delay-bridge said:\n{process.log[-4000:]}")
        raise
    finally:
        process.kill()
