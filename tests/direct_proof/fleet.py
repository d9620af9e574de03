"""The processes of clients: each has a slot, and one that is killed is followed by another one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from support.programs import dying_with_us, environment

from .verdict import Place

_WORKER = Path(__file__).with_name("worker.py")
_STOP_S = 120.0
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d ")
FIRST_WRITER = 1_000
"""Writers with smaller numbers are producers of brokers."""


class Fleet:
    """Producers and consumers of direct mode."""

    def __init__(self, folder: Path, address: str, producers: int, consumers: int, seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._address = address
        self._seed = seed
        self._numbers = count(FIRST_WRITER)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._writers: dict[str, int] = {}
        """The number of the process that has a producer's slot."""
        self._ledgers: dict[int, Path] = {}
        self.producers = [f"producer {number + 1}" for number in range(producers)]
        self.consumers = [f"consumer {number + 1}" for number in range(consumers)]

    @property
    def count(self) -> int:
        """Processes that were started."""
        return len(list(self._folder.glob("*.log")))

    def start(self) -> None:
        for slot in (*self.producers, *self.consumers):
            self.launch(slot)

    def launch(self, slot: str) -> None:
        number = next(self._numbers)
        if slot in self.producers:
            ledger = self._ledgers[number] = self._folder / f"{number}.ledger"
            ledger.touch()
            self._writers[slot] = number
            arguments = ["produce", self._address, str(number), str(ledger), str(self._seed)]
        else:
            arguments = ["consume", self._address, f"{slot} {number}"]
        with (self._folder / f"{number}.log").open("wb") as log:
            self._running[slot] = subprocess.Popen(
                dying_with_us([sys.executable, str(_WORKER), *arguments]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
            )

    def kill(self, slot: str) -> None:
        process = self._running[slot]
        process.kill()
        process.wait()

    def pause(self, slot: str) -> None:
        self._running[slot].send_signal(signal.SIGSTOP)

    def resume(self, slot: str) -> None:
        self._running[slot].send_signal(signal.SIGCONT)

    def stop_producers(self) -> None:
        """Each sends what it has; raises AssertionError if one does not end in order."""
        self._stop(self.producers)

    def stop_consumers(self) -> None:
        self._stop(self.consumers)

    def _stop(self, slots: list[str]) -> None:
        for slot in slots:
            self._running[slot].terminate()
        for slot in slots:
            try:
                code = self._running[slot].wait(_STOP_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{slot} does not stop") from None
            assert code == 0, f"{slot} ended with {code}"

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def check_alive(self) -> None:
        for slot, process in self._running.items():
            assert process.poll() is None, f"{slot} has ended with {process.returncode}"

    def acknowledged(self, slot: str) -> int:
        """Bytes of the ledger: they grow with every message."""
        return self._ledgers[self._writers[slot]].stat().st_size

    def told(self) -> Mapping[int, Mapping[int, Place | None]]:
        """What each process was told, by its number."""
        return {number: _read(ledger) for number, ledger in self._ledgers.items()}

    @property
    def complaints(self) -> list[str]:
        """Lines of the logs that nobody expects."""
        return [
            f"process {log.stem}: {line}"
            for log in sorted(self._folder.glob("*.log"))
            for line in _unexpected(log.read_text(errors="replace").splitlines())
        ]


def _unexpected(lines: Sequence[str]) -> Iterator[str]:
    """Tracebacks, but for those of handlers that failed because the database was away."""
    before = ""
    for line in lines:
        if " CRITICAL " in line or ("Traceback" in line and ".handler_failures " not in before):
            yield f"{before} {line}"
        if _LOGGED.match(line):
            before = line


def _read(ledger: Path) -> dict[int, Place | None]:
    told: dict[int, Place | None] = {}
    for line in ledger.read_text().splitlines():
        value, *place = map(int, line.split())
        told[value] = (place[0], place[1]) if place else None
    return told
