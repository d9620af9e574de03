"""Penstock as installed beside this interpreter."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from bench.servers.process import Launch, ServerError, free_ports


class PenstockServer:
    """The broker of this project, with its default settings."""

    name = "Penstock"
    protocol = "kafka"

    def __init__(self) -> None:
        self.version = version("penstock")
        self._command = Path(sys.executable).parent / "penstock"

    def obtain(self) -> None:
        if not self._command.exists():
            raise ServerError("the penstock command is not installed beside this Python")

    def prepare(self, folder: Path) -> Launch:
        folder.mkdir(parents=True)
        broker, http = free_ports(2)
        address = f"127.0.0.1:{broker}"
        command = [str(self._command), "serve", "--data", str(folder / "data")]
        command += ["--listen", address, "--http", f"127.0.0.1:{http}"]
        return Launch(address=address, command=tuple(command), folder=folder)
