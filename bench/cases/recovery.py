"""How long a broker takes to serve again after kill -9, by the size of its log, with the same unsynced end.

Most of the log is on disk and noted as such before the end of it is written; the process is killed right after that,
long before the next note. A start that looks at the end alone takes as long with much log as with little.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cases.topic import settle
from bench.client.job import Job
from bench.client.launch import run
from bench.client.topics import create_topics, stored
from bench.measure import Measure
from bench.servers.process import Launch, RecoverableServer, Server, ServerError, ServerProcess
from bench.target import Target, until_ready

TOPIC = "recovered"
SPARE_BYTES = 3_000_000_000
LOAD_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A broker of its own, filled, killed and started again."""

    folder: Path
    megabytes: int
    rounds: int
    tail_megabytes: int = 100
    partitions: int = 10
    size: int = 1024
    note_ms: int = 15_000
    """Long enough to write and to be killed between two notes, short enough to wait for one."""
    kind: str = "recovery"

    @property
    def title(self) -> str:
        amount = f"{self.megabytes / 1000:g} GB" if self.megabytes >= 1000 else f"{self.megabytes} MB"
        return f"start after kill -9, {amount} of log, {self.tail_megabytes} MB not synced"

    def measures(self) -> Sequence[Measure]:
        return (
            Measure(key=f"{self.title}, s", label=self.title, unit="s", higher_is_better=False),
            Measure(key=f"{self.title}, read_mb", label=self.title, unit="MB read", higher_is_better=False),
        )

    def run(self, target: Target) -> Mapping[str, float]:
        server = target.server
        if not isinstance(server, RecoverableServer):
            return {}
        self._check_room()
        settle()
        with _own_folder(self.folder) as folder:
            launch = server.prepare_to_crash(folder, self.note_ms)
            with _running(server.protocol, launch) as first:
                create_topics(launch.address, [TOPIC], self.partitions)
                written = self._fill(server, launch.address, self.megabytes)
                server.wait_until_noted(folder, TOPIC)
                written += self._fill(server, launch.address, self.tail_megabytes)
                first.kill()
            begin = time.monotonic()
            with _running(server.protocol, launch) as second:
                seconds = time.monotonic() - begin
                read_mb = second.read_mb()
                found = stored(launch.address, TOPIC, self.partitions)
        if found != written:
            raise ServerError(f"{written} messages were acknowledged, {found} are there after the crash")
        return {f"{self.title}, s": seconds, f"{self.title}, read_mb": read_mb}

    def _fill(self, server: Server, address: str, megabytes: int) -> int:
        """How many messages were written."""
        count = megabytes * 1_000_000 // self.size
        job = Job(
            task="produce",
            protocol=server.protocol,
            address=address,
            topic=TOPIC,
            partitions=self.partitions,
            size=self.size,
            count=count,
            limit_s=LOAD_LIMIT_S,
        )
        sent = int(run(job)["count"])
        if sent < count:
            raise ServerError(f"only {sent:,} of {count:,} messages were written in {LOAD_LIMIT_S:.0f} s")
        return sent + self.partitions  # a producer sends one to each before its clock starts

    def _check_room(self) -> None:
        needed = (self.megabytes + self.tail_megabytes) * 1_100_000 + SPARE_BYTES
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise ServerError(f"{needed / 1e9:.0f} GB of free disk are needed, {free / 1e9:.0f} GB are there")


@contextmanager
def _own_folder(base: Path) -> Iterator[Path]:
    folder = base / f"recovery-{time.monotonic_ns()}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(protocol: str, launch: Launch) -> Iterator[ServerProcess]:
    """A broker from its first acknowledged message on; gone afterwards."""
    process = ServerProcess(launch)
    try:
        until_ready(protocol, launch.address, process)
        yield process
    finally:
        process.stop()
