"""A broker under measurement: running, addressed, and perhaps started by us."""

from __future__ import annotations

import shutil
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from bench.client.dialects import dialect
from bench.client.driver import DriverError, NotReady
from bench.servers.process import Server, ServerProcess, TlsEndpoint

START_LIMIT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One column of the report. A server that somebody else runs has neither process nor kind."""

    name: str
    protocol: str
    address: str
    version: str = ""
    server: Server | None = None
    process: ServerProcess | None = None
    folder: Path | None = None
    tls: TlsEndpoint | None = None
    replicas: int = 1
    """Of the topics that are made there."""

    def endpoint(self, *, has_tls: bool) -> tuple[str, str]:
        """Where a client connects, and whom it trusts there: nobody, where nothing is encrypted."""
        if not has_tls:
            return self.address, ""
        if self.tls is None:
            raise DriverError("it has no listener with TLS")
        return self.tls.address, self.tls.ca_file

    @property
    def pids(self) -> tuple[int, ...]:
        """Every process that its figures of CPU and memory count."""
        return (self.process.pid,) if self.process else ()

    def stop(self) -> None:
        if self.process:
            self.process.stop()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def start(server: Server, folder: Path) -> tuple[Target, float]:
    """Start a server on fresh storage; returns it with the seconds until it acknowledged a first message."""
    launch = server.prepare(folder)
    begin = time.monotonic()
    process = ServerProcess(launch)
    try:
        until_ready(server.protocol, launch.address, process)
    except BaseException:
        process.stop()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    took = time.monotonic() - begin
    target = Target(
        name=server.name,
        protocol=server.protocol,
        address=launch.address,
        tls=launch.tls,
        version=server.version,
        server=server,
        process=process,
        folder=folder,
    )
    return target, took


def until_ready(protocol: str, address: str, process: ServerProcess) -> None:
    """Returns when it has acknowledged a first message."""
    speech = dialect(protocol)
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            speech.probe(address)
            return
        except (OSError, NotReady, struct.error):
            process.check()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)
