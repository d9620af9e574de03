"""Subscriptions in processes of their own, for tests that kill them."""

from __future__ import annotations

import json
import random
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import penstock
from support import subscriber
from support.broker_process import BrokerProcess
from support.programs import Process, start
from support.waiting import PATIENCE_S, until

SETTINGS = {"groups.min_session_timeout_ms": 1000, "groups.initial_rebalance_delay_ms": 100}
"""Of a broker that notices soon that one of them is gone."""
_STOP_S = 40
_BOTH = ("a", "b")
_FAILING = 0.25
_PAUSE_S = 0.005
_BROKERS_ROUND = 2


class Subscribers:
    """Processes by name; one that is started again writes into the same diary."""

    def __init__(self, folder: Path, **common: object) -> None:
        self._folder = folder
        self._common = common
        self._processes: dict[str, Process] = {}

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
            command = [sys.executable, subscriber.__file__, *options]
            self._processes[name] = start(command, stdout=log, stderr=log, new_session=True)
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

    def killed_under_load(
        self, broker: BrokerProcess, client: penstock.Client, topic: str, rounds: int, chance: random.Random
    ) -> list[str]:
        """Two of them work on what is sent all the while; in every round one is killed, in the third the broker. Gives
        what was sent: some of it fails at first.
        """
        sent: list[str] = []
        enough = threading.Event()

        def send_on() -> None:
            while not enough.is_set():
                sent.append(f"{'fails' if chance.random() < _FAILING else 'works'} {len(sent)}")
                client.send_soon(topic, sent[-1])
                enough.wait(_PAUSE_S)

        for name in _BOTH:
            self.start(name)
        load = threading.Thread(target=send_on)
        load.start()
        try:
            for round_ in range(rounds):
                before = len(self.values("handled"))
                until(lambda before=before: len(self.values("handled")) > before + 50, "work goes on", 2 * PATIENCE_S)
                if round_ == _BROKERS_ROUND:
                    broker.kill()
                    broker.start()
                else:
                    name = chance.choice(_BOTH)
                    self.kill(name)
                    self.start(name)
        finally:
            enough.set()
            load.join()
        assert client.flush("60s")
        return sent

    def stop_all(self) -> None:
        for name in list(self._processes):
            self.stop(name)

    def log(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return path.read_text()[-5000:] if path.exists() else ""

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
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
