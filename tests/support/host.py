"""Several brokers of one host as `penstock serve --brokers` runs them."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.ports import first_of_free_ports
from support.programs import PENSTOCK, dying_with_us, environment
from support.waiting import until

_STOP_S = 60


class Host:
    """A supervisor and its brokers, numbered from 1."""

    def __init__(
        self,
        folder: Path,
        coordinator: str,
        count: int,
        *,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`coordinator` is HOST:PORT/PATH of the tree."""
        self.data = folder / "data"
        self.port = first_of_free_ports(2 * count)
        self.count = count
        self._output, self._errors = folder / "stdout", folder / "stderr"
        named = {
            "--brokers": count,
            "--data": self.data,
            "--listen": f"127.0.0.1:{self.port}",
            "--http": f"127.0.0.1:{self.port + count}",
            "--coordinator": f"zk://{coordinator}",
        }
        command = [PENSTOCK, "serve", *(str(word) for pair in named.items() for word in pair), *options]
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                dying_with_us(command), stdout=output, stderr=errors, env=environment(env), start_new_session=True
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def log(self) -> str:
        return self._errors.read_text(errors="replace")

    @property
    def kafka(self) -> str:
        """Where clients begin: the addresses of all."""
        return ",".join(f"127.0.0.1:{self.port + number}" for number in range(self.count))

    def wait_until_ready(self) -> Host:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log
            return "Penstock is ready" in self.output

        until(is_ready, "the brokers are ready")
        return self

    def pids(self) -> dict[int, int]:
        """The process of each broker that has one now."""
        found = {}
        for pid in _children_of(self.process.pid):
            number = re.search(rb"broker\.id=(\d+)", Path(f"/proc/{pid}/cmdline").read_bytes())
            # One that has just been made is not a broker yet.
            if number is not None and pid != self.process.pid:
                found[int(number[1])] = pid
        return found

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(_STOP_S)

    def said(self, what: str) -> list[int]:
        """The brokers that have logged this of their own life as processes, in the order in which they did."""
        return [int(number) for number in re.findall(rf"broker-(\d+) broker\.server  {what}\b", self.log)]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def is_gone(pid: int) -> bool:
    """Whether a process has ended, whoever has to take note of that."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
