"""Redis with its append-only file flushed every second."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from bench.servers.packages import ensure_command
from bench.servers.process import Launch, free_ports


class RedisServer:
    """Redis Streams."""

    name = "Redis Streams"
    protocol = "redis"
    version = ""

    def obtain(self) -> None:
        self._command = ensure_command("redis-server", "redis-server")
        told = subprocess.run([self._command, "--version"], capture_output=True, text=True, timeout=20).stdout
        found = re.search(r"v=([\d.]+)", told)
        self.version = f"{found[1] if found else 'unknown'}, AOF everysec"

    def prepare(self, folder: Path) -> Launch:
        folder.mkdir(parents=True)
        (port,) = free_ports(1)
        command = [self._command, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--daemonize", "no"]
        return Launch(address=f"127.0.0.1:{port}", command=tuple(command), folder=folder)
