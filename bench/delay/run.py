"""One broker from its start to its end: filled with messages for the next thirty days, killed, started again, and asked
for many a second and for a burst with all those still pending.

Due times within a phase are random. Lateness is counted up to the moment at which the client has a message, on the
clock that all processes of the machine share.
"""

from __future__ import annotations

import random
import struct
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.client.driver import DriverError, NotReady
from bench.delay.clients import BODY_BYTES, TimerClient, now_ms
from bench.measure import Measure
from bench.servers.process import Launch, Server, ServerError, ServerProcess
from bench.servers.usage import cpu_s

HOUR_MS = 3_600_000
DAYS_MS = 30 * 24 * HOUR_MS
NEAR_MS = HOUR_MS // 3
LATE_BOUND_MS = 50.0
NEAR_BYTES = 24.0
_START_S = 120.0
_LEAD_FACTOR = 3
"""Sending for soon may be slower than sending for later: others may have the machine."""
_SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayRun:
    """How much is asked of a broker."""

    pending: int
    rate: int
    seconds: int
    burst: int
    near: int
    """Messages due within the hour, but not while this runs."""
    settle_s: float = 5.0
    """How long a broker is left alone before its memory is looked at, and how long before the first is due."""
    limit_s: float = 3600.0
    title: str = "delayed messages"
    kind: str = "delay"
    rounds: int = 1
    partitions: int = 1

    def measures(self) -> Sequence[Measure]:
        rate = f"{self.rate:,} due a second"
        return (
            _lower("cpu", "taking messages for later: CPU", "us a message"),
            _higher("taken", "taking messages for later", "messages/s"),
            _lower("written", "bytes written for each byte of payload", "bytes"),
            _lower("memory", "memory with all of them pending, above an idle broker", "MB"),
            _lower("memory each", "memory with all of them pending, above an idle broker", "bytes a message"),
            _lower("memory near", f"memory for {self.near:,} more, due within the hour", "bytes a message", NEAR_BYTES),
            _lower("restart", "kill -9 with all of them pending: until the next one is delivered", "s"),
            _lower("late p50", f"lateness, {rate}: p50", "ms"),
            _lower("late p99", f"lateness, {rate}: p99", "ms", bound=LATE_BOUND_MS),
            _lower("late p99.9", f"lateness, {rate}: p99.9", "ms"),
            _lower("late max", f"lateness, {rate}: max", "ms"),
            Measure(
                key="early",
                label=f"lateness, {rate}: the earliest, by the broker's clock",
                unit="ms",
                higher_is_better=True,
                bound=0.0,
                shows_worst=True,
            ),
            _lower("rate cpu", f"{rate}: CPU", "us a message"),
            _lower("burst s", f"{self.burst:,} due in one second: until the last has come", "s"),
            _higher("burst rate", f"{self.burst:,} due in one second", "messages/s"),
            _lower("burst p99", f"{self.burst:,} due in one second: lateness p99", "ms"),
        )

    def run(self, server: Server, client: TimerClient, folder: Path, tell: Tell) -> Mapping[str, float]:
        """All figures of one broker, on storage of its own."""
        launch = server.prepare(folder)
        process = ServerProcess(launch)
        try:
            _until_ready(client, launch, process)
            # Both times after the same work: code is loaded when it is first needed.
            self._deliver_one(client, launch.address, 1)
            idle_mb = self._idle_memory_mb(process)
            tell(f"{server.name}: {self.pending:,} messages for the next thirty days")
            figures, per_s = self._fill(client, launch, process, tell)
            process.kill()
            tell(f"{server.name}: start after kill -9")
            began = time.monotonic()
            process = ServerProcess(launch)
            _until_ready(client, launch, process)
            self._deliver_one(client, launch.address, 2)
            figures["restart"] = time.monotonic() - began
            held_mb = max(0.0, self._idle_memory_mb(process) - idle_mb)
            figures |= {"memory": held_mb, "memory each": held_mb * 1e6 / self.pending}
            tell(f"{server.name}: {self.near:,} due within the hour")
            figures["memory near"] = self._near(client, launch.address, process)
            tell(f"{server.name}: {self.rate:,} due a second for {self.seconds} s")
            figures |= self._rate(client, launch.address, process, per_s)
            tell(f"{server.name}: {self.burst:,} due in one second")
            figures |= self._burst(client, launch.address, per_s)
            return figures
        finally:
            process.stop()

    def _deliver_one(self, client: TimerClient, address: str, number: int) -> None:
        """Returns when a message has come that was sent now for a moment later, the first or second of all such."""
        client.send(address, "again", [now_ms() + 100], self.limit_s)
        client.receive(address, "again", number, self.limit_s)

    def _idle_memory_mb(self, process: ServerProcess) -> float:
        """Memory that is the process's own, not the cache of its files, once it has nothing to do."""
        time.sleep(self.settle_s)
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise ServerError("the kernel does not tell what memory is a process's own")

    def _fill(
        self, client: TimerClient, launch: Launch, process: ServerProcess, tell: Tell
    ) -> tuple[dict[str, float], float]:
        """Sends what stays pending; gives the figures, and how many were taken a second."""
        client.create(launch.address, "pending")
        written, cpu, began = _written(process), cpu_s(process.pid), time.monotonic()
        dues = _dues(1, HOUR_MS, DAYS_MS, self.pending, now_ms())
        client.send(launch.address, "pending", _told(dues, self.pending, tell), self.limit_s)
        took = time.monotonic() - began
        time.sleep(self.settle_s)
        figures = {
            "taken": self.pending / took,
            "cpu": (cpu_s(process.pid) - cpu) * 1e6 / self.pending,
            "written": (_written(process) - written) / (self.pending * BODY_BYTES),
        }
        return figures, self.pending / took

    def _near(self, client: TimerClient, address: str, process: ServerProcess) -> float:
        """Bytes of memory for each message that is due soon, but not yet."""
        client.create(address, "near")
        before_mb = self._idle_memory_mb(process)
        client.send(address, "near", _dues(3, NEAR_MS, HOUR_MS, self.near, now_ms()), self.limit_s)
        return max(0.0, self._idle_memory_mb(process) - before_mb) * 1e6 / self.near

    def _rate(self, client: TimerClient, address: str, process: ServerProcess, per_s: float) -> dict[str, float]:
        count = self.rate * self.seconds
        self._send_ahead(client, address, "rate", count, self.seconds * 1000, per_s)
        cpu = cpu_s(process.pid)
        found = client.receive(address, "rate", count, self.limit_s)
        late = sorted(found.late_at_client)
        return {f"late {name}": float(_share(late, share)) for name, share in _SHARES.items()} | {
            "early": float(min(found.late_at_broker)),
            "rate cpu": (cpu_s(process.pid) - cpu) * 1e6 / count,
        }

    def _burst(self, client: TimerClient, address: str, per_s: float) -> dict[str, float]:
        start = self._send_ahead(client, address, "burst", self.burst, 1000, per_s)
        found = client.receive(address, "burst", self.burst, self.limit_s)
        took = (found.last_ms - start) / 1000
        late = sorted(found.late_at_client)
        return {"burst s": took, "burst rate": self.burst / took, "burst p99": float(_share(late, 0.99))}

    def _send_ahead(self, client: TimerClient, address: str, topic: str, count: int, span_ms: int, per_s: float) -> int:
        """Sends messages that are due from some time on, all of them before that; gives the time."""
        client.create(address, topic)
        start = now_ms() + int(1000 * self.settle_s + _LEAD_FACTOR * 1000 * count / per_s)
        client.send(address, topic, _dues(2, 0, span_ms, count, start), self.limit_s)
        if now_ms() >= start:
            raise DriverError("sending took so long that the first were due before the last was sent")
        return start


def _lower(key: str, label: str, unit: str, bound: float | None = None) -> Measure:
    return Measure(key=key, label=label, unit=unit, higher_is_better=False, bound=bound)


def _higher(key: str, label: str, unit: str) -> Measure:
    return Measure(key=key, label=label, unit=unit, higher_is_better=True)


def _dues(seed: int, low_ms: int, high_ms: int, count: int, from_ms: int) -> Iterator[int]:
    chance = random.Random(seed)
    return (from_ms + chance.randrange(low_ms, high_ms) for _ in range(count))


def _told(dues: Iterator[int], count: int, tell: Tell) -> Iterator[int]:
    """The same, telling how far it has come."""
    step = max(1, count // 10)
    for number, due in enumerate(dues):
        if number and number % step == 0:
            tell(f"  {number:,} of {count:,} sent")
        yield due


def _share(ordered: Sequence[int] | array[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _written(process: ServerProcess) -> int:
    """Bytes that it has made the disk's: by writing, and in files that it has mapped."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    return int(fields["write_bytes"])


def _until_ready(client: TimerClient, launch: Launch, process: ServerProcess) -> None:
    """Returns when it takes messages and gives them."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        process.check()
        with suppress(OSError, NotReady, DriverError, struct.error):
            client.create(launch.address, "again")
            return
        time.sleep(0.02)
    raise ServerError(f"{launch.address} did not serve within {_START_S:.0f} s")
