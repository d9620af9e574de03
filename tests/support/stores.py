"""Redis and MariaDB as Debian ships them: processes of their own on free loopback ports, with folders of their own."""

from __future__ import annotations

import getpass
import subprocess
from pathlib import Path

import pymysql
import redis

from support.programs import dying_with_us, environment, required_program
from support.waiting import until
from support.zookeeper import free_ports


class RedisProcess:
    """Starts with `start`, ends with `kill`; what it was told survives in its append-only file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> RedisProcess:
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        command = [required_program("redis-server"), *options, "--appendonly", "yes", "--appendfsync", "no"]
        self._process = _launched(command, self._folder / "log")
        until(self._answers, "Redis answers")
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


class MariaDbProcess:
    """Starts with `start`, ends with `kill`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._data = folder / "data"
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mysql+pymysql://penstock:penstock@127.0.0.1:{self._port}/penstock"

    def start(self) -> MariaDbProcess:
        server, user = required_program("mariadbd"), getpass.getuser()
        if not self._data.exists():
            made = subprocess.run(
                [
                    required_program("mariadb-install-db"),
                    "--no-defaults",
                    f"--user={user}",
                    f"--datadir={self._data}",
                    "--skip-test-db",
                ],
                capture_output=True,
                timeout=120,
                check=False,
                env=environment(),
            )
            assert made.returncode == 0, made.stderr.decode()
            # One statement a line, or the server refuses all.
            (self._folder / "init.sql").write_text(
                "create database if not exists penstock;\n"
                "create user if not exists penstock@'127.0.0.1' identified by 'penstock';\n"
                "grant all on penstock.* to penstock@'127.0.0.1';\n"
            )
        command = [
            server,
            "--no-defaults",
            f"--user={user}",
            f"--datadir={self._data}",
            f"--socket={self._folder / 'socket'}",
            f"--pid-file={self._folder / 'pid'}",
            f"--port={self._port}",
            "--bind-address=127.0.0.1",
            f"--init-file={self._folder / 'init.sql'}",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=0",
        ]
        self._process = _launched(command, self._folder / "log")
        until(self._answers, "MariaDB answers")
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            pymysql.connect(
                host="127.0.0.1", port=self._port, user="penstock", password="penstock", database="penstock"
            ).close()
        except pymysql.Error:
            return False
        return True


def _launched(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            dying_with_us(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(),
            start_new_session=True,
        )
