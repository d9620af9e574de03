"""Penstock as installed beside this interpreter."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from bench.servers.process import Launch, ServerError, free_ports


class PenstockServer:
    """The broker of this project, with its default settings but for the wait before a group's first assignment."""

    name = "Penstock"
    protocol = "kafka"

    def __init__(self, *, group_delays: bool = False) -> None:
        self._group_delays = group_delays
        self.version = version("penstock")
        self._command = Path(sys.executable).parent / "penstock"

    def obtain(self) -> None:
        if not self._command.exists():
            raise ServerError("the penstock command is not installed beside this Python")

    def with_group_delays(self) -> PenstockServer:
        return PenstockServer(group_delays=True)

    def prepare(self, folder: Path) -> Launch:
        folder.mkdir(parents=True)
        broker, http = free_ports(2)
        address = f"127.0.0.1:{broker}"
        command = [str(self._command), "serve", "--data", str(folder / "data")]
        command += ["--listen", address, "--http", f"127.0.0.1:{http}"]
        if not self._group_delays:
            command += ["--set", "groups.initial_rebalance_delay_ms=0"]
        return Launch(address=address, command=tuple(command), folder=folder)
