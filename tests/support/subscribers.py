"""Subscriptions in processes of their own, for tests that kill them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from support import subscriber
from support.programs import dying_with_us, environment
from support.waiting import until

SETTINGS = {"groups.min_session_timeout_ms": 1000, "groups.initial_rebalance_delay_ms": 100}
"""Of a broker that notices soon that one of them is gone."""
_STOP_S = 40


class Subscribers:
    """Processes by name; one that is started again writes into the same diary."""

    def __init__(self, folder: Path, **common: object) -> None:
        self._folder = folder
        self._common = common
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Subscribers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._processes):
            self.kill(name)

    def start(self, name: str, **own: object) -> None:
        begun = len(self.events(name, "begun"))
        given = {**self._common, **own, "diary": self._diary(name)}
        options = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                dying_with_us([sys.executable, subscriber.__file__, *options]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )
        until(lambda: len(self.events(name, "begun")) > begun, f"{name} has begun:\n{self.log(name)}")

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        assert process.wait(_STOP_S) == 0, self.log(name)

    def wait_for_death(self, name: str) -> None:
        """It was told to die at some point, and has reached it."""
        process = self._processes[name]
        until(lambda: process.poll() is not None, f"{name} has died")
        assert self.events(name, "dying"), self.log(name)
        del self._processes[name]

    def is_alive(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def log(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return path.read_text()[-5000:] if path.exists() else ""

    def events(self, name: str, kind: str) -> list[dict[str, str]]:
        path = self._diary(name)
        # What stands behind the last line end is being written.
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def values(self, kind: str) -> list[str]:
        """Of all of them."""
        return [
            event["value"] for path in sorted(self._folder.glob("*.diary")) for event in self.events(path.stem, kind)
        ]

    def _diary(self, name: str) -> Path:
        return self._folder / f"{name}.diary"
