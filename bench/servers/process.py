"""A server process that this program started: its ports, its CPU and memory, and its end.

A server gets a session of its own, so that Ctrl-C reaches only the benchmark, which then stops what it
started; should the benchmark itself be killed, the kernel ends the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from bench.servers.usage import end, members

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_000


class ServerError(Exception):
    """A server could not be obtained or did not start; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsEndpoint:
    """Where a server speaks TLS, and whom its clients have to trust."""

    address: str
    ca_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A server ready to be started, on storage of its own."""

    address: str
    tls: TlsEndpoint | None = None
    """A second listener."""
    command: tuple[str, ...]
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)


class Server(Protocol):
    """A kind of broker."""

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> str: ...

    @property
    def version(self) -> str:
        """Known after `obtain`."""
        ...

    def obtain(self) -> None:
        """Install or find what is needed, or raise ServerError with the reason."""
        ...

    def prepare(self, folder: Path) -> Launch:
        """Make fresh storage and settings in a folder that does not exist yet."""
        ...


@runtime_checkable
class GroupServer(Server, Protocol):
    """A broker with consumer groups. Its coordinator waits for nobody, so that its own speed shows."""

    def with_group_delays(self) -> Server:
        """The same broker, waiting for further members as it is shipped to do."""
        ...


@runtime_checkable
class TlsServer(Server, Protocol):
    """A broker that can encrypt."""

    def with_tls(self) -> Server:
        """The same broker with a second listener, for clients with TLS."""
        ...


@runtime_checkable
class RecoverableServer(Server, Protocol):
    """A broker that notes how far its logs are on disk, and after a crash looks at what is behind that."""

    def prepare_to_crash(self, folder: Path, note_ms: int) -> Launch:
        """As `prepare`, with a note every `note_ms` if that is how it does it."""
        ...

    def wait_until_noted(self, folder: Path, topic: str) -> None:
        """Returns when the broker in `folder` has noted all that it can of the topic."""
        ...


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, and that stay free while a server is down.

    The kernel gives those of its own range to outgoing connections, even to one that is made to such a port.
    """
    highest = int(_PORT_RANGE.read_text().split()[0]) - 1
    found: list[int] = []
    for port in random.sample(range(_LOWEST_PORT, highest), min(1000, highest - _LOWEST_PORT)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ServerError(f"there are no {count} free ports below {highest}")


def adopt_orphans() -> None:
    """Have the kernel hand us the children of servers that ended first, so that we can end and reap them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ServerProcess:
    """One running server."""

    def __init__(self, launch: Launch) -> None:
        self._log = launch.folder / "server.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                launch.command,
                cwd=launch.folder,
                env={**os.environ, **launch.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise with the end of the log if the process is gone."""
        code = self._process.poll()
        if code is not None:
            tail = self._log.read_text(errors="replace")[-800:]
            raise ServerError(f"server exited with {code}: {tail}")

    def read_mb(self) -> float:
        """What it has read from files and sockets so far, in MB."""
        fields = dict(line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text().splitlines())
        return int(fields["rchar"]) / 1e6

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()

    def terminate(self, limit_s: float) -> float:
        """SIGTERM; waits until it has ended, and gives the CPU seconds of its whole life."""
        before = os.times()
        self._process.terminate()
        self._process.wait(limit_s)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    def stop(self, grace_s: float = 20) -> None:
        """SIGTERM, wait, then SIGKILL what is left of the tree."""
        family = members(self.pid)
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        end(family, grace_s)
        self._process.wait(grace_s)
