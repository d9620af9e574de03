"""Penstock as installed beside this interpreter."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from bench.servers.certificates import HOST, make_certificate
from bench.servers.process import Launch, ServerError, TlsEndpoint, free_ports

NOTE_LIMIT_S = 120.0


class PenstockServer:
    """The broker of this project, with its default settings but for the wait before a group's first assignment."""

    name = "Penstock"
    protocol = "kafka"

    def __init__(self, *, group_delays: bool = False, has_tls: bool = False) -> None:
        self._group_delays = group_delays
        self._has_tls = has_tls
        self.version = version("penstock")
        self.executable = Path(sys.executable).parent / "penstock"

    def obtain(self) -> None:
        if not self.executable.exists():
            raise ServerError("the penstock command is not installed beside this Python")

    def with_group_delays(self) -> PenstockServer:
        return PenstockServer(group_delays=True)

    def with_tls(self) -> PenstockServer:
        return PenstockServer(group_delays=self._group_delays, has_tls=True)

    def prepare_to_crash(self, folder: Path, note_ms: int) -> Launch:
        launch = self.prepare(folder)
        return replace(launch, command=(*launch.command, "--set", f"log.checkpoint_ms={note_ms}"))

    def wait_until_noted(self, folder: Path, topic: str) -> None:
        deadline = time.monotonic() + NOTE_LIMIT_S
        while not self._is_noted(folder / "data" / "logs" / "checkpoint.json", topic):
            if time.monotonic() > deadline:
                raise ServerError(f"{topic} was not synced within {NOTE_LIMIT_S:.0f} s")
            time.sleep(0.05)

    def _is_noted(self, checkpoint: Path, topic: str) -> bool:
        logs = json.loads(checkpoint.read_text())["logs"]
        own = [log for name, log in logs.items() if name.rpartition("-")[0] == topic]
        return bool(own) and all(log["recovery"] == log["end"] > 0 for log in own)

    def prepare(self, folder: Path) -> Launch:
        folder.mkdir(parents=True)
        broker, http, encrypted = free_ports(3)
        address = listen = f"127.0.0.1:{broker}"
        settings: list[str] = []
        tls = None
        if self._has_tls:
            certificate = make_certificate(folder)
            tls = TlsEndpoint(address=f"{HOST}:{encrypted}", ca_file=str(certificate.file))
            listen = f"PLAINTEXT://{address},SSL://{tls.address}"
            settings += ["--set", f"security.certificate_file={certificate.file}"]
            settings += ["--set", f"security.key_file={certificate.key_file}"]
        command = [str(self.executable), "serve", "--data", str(folder / "data")]
        command += ["--listen", listen, "--http", f"127.0.0.1:{http}", *settings]
        if not self._group_delays:
            command += ["--set", "groups.initial_rebalance_delay_ms=0"]
        return Launch(address=address, tls=tls, command=tuple(command), folder=folder)
