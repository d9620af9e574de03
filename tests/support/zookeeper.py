"""ZooKeeper as Debian ships it: processes of its own on free loopback ports, alone or as an ensemble."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from support import pausing
from support.ports import free_ports
from support.programs import dying_with_us, environment, required_program
from support.waiting import until

TICK_MS = 500
"""No session is shorter than two ticks."""

_JARS = ("zookeeper.jar", "slf4j-simple.jar")
_TLS_JARS = ("netty-codec.jar", "netty-handler.jar")
_JAR_FOLDER = Path("/usr/share/java")
_STOP_S = 30
_LOG_SHOWN_CHARS = 10_000


class ZooKeeperProcess:
    """Starts with `start`, ends with `stop` or `kill`, and can be started again after either, on the same ports."""

    def __init__(
        self, folder: Path, number: int = 1, ensemble: Sequence[str] = (), secure: Mapping[str, object] | None = None
    ) -> None:
        """`secure` are settings of TLS: it listens on a second port with it then."""
        self._is_secure = secure is not None
        folder.mkdir(parents=True)
        self._log = folder / "log"
        self._config = folder / "zoo.cfg"
        data = folder / "data"
        data.mkdir()
        (data / "myid").write_text(f"{number}\n")
        self._port, self._secure_port = free_ports(2)
        lines = [
            f"dataDir={data}",
            f"clientPort={self._port}",
            "clientPortAddress=127.0.0.1",
            f"tickTime={TICK_MS}",
            "initLimit=20",
            "syncLimit=10",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            *ensemble,
        ]
        if secure is not None:
            lines += [
                f"secureClientPort={self._secure_port}",
                "secureClientPortAddress=127.0.0.1",
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                *(f"{name}={value}" for name, value in secure.items()),
            ]
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def secure_address(self) -> str:
        return f"127.0.0.1:{self._secure_port}"

    @property
    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_SHOWN_CHARS:]

    def launch(self) -> None:
        """Starts without waiting until it serves: a member of an ensemble serves when there is a majority."""
        assert self._process is None or self._process.poll() is not None
        command = [
            required_program("java"),
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            # Processes are killed here, never the machine: what is in the page cache survives.
            "-Dzookeeper.forceSync=no",
            "-Dzookeeper.preAllocSize=1024",
            "-cp",
            ":".join(str(_required_jar(name)) for name in (*_JARS, *(_TLS_JARS if self._is_secure else ()))),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self._config),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                dying_with_us(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )

    def wait_until_serving(self) -> ZooKeeperProcess:
        def serves() -> bool:
            assert self._process is not None and self._process.poll() is None, f"ZooKeeper died:\n{self.log_tail}"
            return self.mode() is not None

        until(serves, "ZooKeeper serves")
        return self

    def start(self) -> ZooKeeperProcess:
        self.launch()
        return self.wait_until_serving()

    def mode(self) -> str | None:
        """standalone, leader or follower; None if it does not serve."""
        return self._said("Mode")

    def last_commit(self) -> str | None:
        """The id of the last change that it has committed; None if it does not serve."""
        return self._said("Zxid")

    def _said(self, what: str) -> str | None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(b"srvr")
                said = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return None
        return next(
            (line.removeprefix(f"{what}: ") for line in said.splitlines() if line.startswith(f"{what}: ")), None
        )

    def pause(self) -> None:
        assert self._process is not None
        pausing.pause(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        pausing.resume(self._process.pid)

    def kill(self) -> None:
        """Ends it as a crash would, paused or not. Killing twice is allowed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_STOP_S)


class Ensemble:
    """Three that act as one as long as two of them are there."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(6)
        lines = [f"server.{number}=127.0.0.1:{ports[2 * number - 2]}:{ports[2 * number - 1]}" for number in (1, 2, 3)]
        self.members = [ZooKeeperProcess(folder / str(number), number, lines) for number in (1, 2, 3)]

    @property
    def servers(self) -> str:
        return ",".join(member.address for member in self.members)

    def start(self) -> Ensemble:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_until_serving()
        return self

    def leader(self) -> ZooKeeperProcess:
        found = until(
            lambda: next((member for member in self.members if member.mode() == "leader"), None), "a leader is elected"
        )
        assert found is not None
        return found

    def kill(self) -> None:
        for member in self.members:
            member.kill()


def _required_jar(name: str) -> Path:
    path = _JAR_FOLDER / name
    if not path.exists():
        required_program("zookeeper")
        pytest.skip(f"{name} is not installed")
    return path
