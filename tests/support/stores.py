"""Redis, MariaDB and PostgreSQL as Debian ships them: processes on free loopback ports, with folders of their own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pymysql
import redis

from support import pausing
from support.ports import free_ports
from support.programs import dying_with_us, environment, required_program
from support.waiting import until

_STOP_S = 30

SERVERS = ["mariadb", "postgresql"]
DATABASES = [*SERVERS, "sqlite"]
"""The kinds that the fixture `new_database` makes."""

NewDatabase = Callable[[str], str]


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
        self._process = _launched(dying_with_us(command), self._folder / "log")
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


class DatabaseServer(Protocol):
    """A server of databases: ends with `stop` or `kill`, and can be started again after either, on the same port."""

    def start(self) -> DatabaseServer: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...

    def create_database(self, name: str) -> str:
        """The address of a new database, for a user without special privileges."""
        ...

    def drop_database(self, name: str) -> None: ...

    def administer(self, sql: str, database: str | None = None) -> Sequence[Sequence[Any]]:
        """Run a statement as the administrator."""
        ...


class _Process:
    _stop_signal = signal.SIGTERM

    def __init__(self) -> None:
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self._port

    def kill(self) -> None:
        """Ends it as a crash would, paused or not. Killing twice is allowed."""
        if self._process is None or self._process.poll() is not None:
            return
        pids = self._pids()
        pausing.send(pids, signal.SIGKILL)
        self._process.wait()
        until(lambda: all(pausing.thread_states(pid) <= pausing.ENDED for pid in pids), "the server has ended")

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(self._stop_signal)
        self._process.wait(_STOP_S)

    def pause(self) -> None:
        pausing.pause(*self._pids())

    def resume(self) -> None:
        pausing.resume(*self._pids())

    def _pids(self) -> list[int]:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return [self._process.pid, *map(int, children)]


class MariaDbProcess(_Process):
    """Starts with `start`, ends with `stop` or `kill`; what is committed survives both."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> None:
        """`env` is what its environment has beside ours, `options` what its command line has at the end."""
        super().__init__()
        folder.mkdir(parents=True)
        self._folder = folder
        self._data = folder / "data"
        # A server that starts removes temporary tables, also those of others, from the folder for temporary files.
        (folder / "tmp").mkdir()
        self._env = {"TMPDIR": str(folder / "tmp"), **(env or {})}
        self.options = options
        """Of the next start."""

    @property
    def url(self) -> str:
        return f"mysql+pymysql://penstock:penstock@127.0.0.1:{self._port}/penstock"

    def create_database(self, name: str) -> str:
        self.administer(f"create database {name}")
        self.administer(f"grant all on {name}.* to penstock@'127.0.0.1'")
        return f"mysql://penstock:penstock@127.0.0.1:{self._port}/{name}"

    def drop_database(self, name: str) -> None:
        self.administer(f"drop database {name}")

    def administer(self, sql: str, database: str | None = None) -> Sequence[Sequence[Any]]:
        with self._connected("admin", database) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def replication_status(self) -> Mapping[str, Any]:
        """What a replica says of its replication."""
        with self._connected("admin", None) as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("show slave status")
            return dict(cursor.fetchone())

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
                env={**environment(), **self._env},
            )
            assert made.returncode == 0, made.stderr.decode()
            # One statement a line, or the server refuses all.
            (self._folder / "init.sql").write_text(
                "create database if not exists penstock;\n"
                "create user if not exists penstock@'127.0.0.1' identified by 'penstock';\n"
                "grant all on penstock.* to penstock@'127.0.0.1';\n"
                "create user if not exists admin@'127.0.0.1' identified by 'admin';\n"
                "grant all on *.* to admin@'127.0.0.1' with grant option;\n"
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
            # Processes are killed here, never the machine: what is in the page cache survives.
            "--innodb-flush-log-at-trx-commit=2",
            *self.options,
        ]
        self._process = _launched(dying_with_us(command), self._folder / "log", self._env)
        until(self._answers, "MariaDB answers")
        return self

    def _connected(self, user: str, database: str | None) -> Any:
        # Else each connection would read all certificates of the machine.
        return pymysql.connect(
            host="127.0.0.1",
            port=self._port,
            user=user,
            password=user,
            database=database,
            autocommit=True,
            ssl_disabled=True,
        )

    def _answers(self) -> bool:
        try:
            self._connected("penstock", "penstock").close()
        except pymysql.Error:
            return False
        return True


class PostgresProcess(_Process):
    """Starts with `start`, ends with `stop` or `kill`, and `remove` takes its folder away.

    It does not run as root. Its folder is not below the one of the test, which other users cannot enter.
    """

    # Clients are not waited for.
    _stop_signal = signal.SIGINT

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        self._data = self._folder / "data"
        if os.getuid() == 0:
            shutil.chown(self._folder, "postgres", "postgres")

    @property
    def data(self) -> Path:
        """The folder with its data and settings."""
        return self._data

    def create_database(self, name: str) -> str:
        self.administer(f"create database {name} owner penstock")
        return f"postgresql://penstock:penstock@127.0.0.1:{self._port}/{name}"

    def drop_database(self, name: str) -> None:
        self.administer(f"drop database {name} with (force)")

    def administer(self, sql: str, database: str | None = None) -> Sequence[Sequence[Any]]:
        with self._connected(database or "postgres") as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def start(self) -> PostgresProcess:
        is_new = not self._data.exists()
        if is_new:
            self._initialize()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self._port,
            "unix_socket_directories": "",
            # Processes are killed here, never the machine: what is in the page cache survives.
            "fsync": "off",
            "shared_buffers": "32MB",
            "max_connections": 60,
        }
        command = [_postgres_program("postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self._process = _launched(_as_postgres(command, "--pdeathsig", "KILL"), self._folder / "log")
        until(self._answers, "PostgreSQL answers")
        if is_new:
            self.administer("create role penstock login password 'penstock'")
        return self

    def follow(self, primary: PostgresProcess) -> PostgresProcess:
        """Starts as a replica of another server, which runs; instead of `start` for the first time."""
        with (primary._data / "pg_hba.conf").open("a") as rules:
            rules.write("host replication admin 127.0.0.1/32 trust\n")
        primary.administer("select pg_reload_conf()")
        source = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "admin"]
        options = ["-D", str(self._data), "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        self._make([_postgres_program("pg_basebackup"), *source, *options])
        return self.start()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def _initialize(self) -> None:
        options = ["-D", str(self._data), "-U", "admin", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        self._make([_postgres_program("initdb"), *options])
        (self._data / "pg_hba.conf").write_text(
            "host all admin 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )

    def _make(self, command: list[str]) -> None:
        made = subprocess.run(
            _as_postgres(command), capture_output=True, timeout=120, check=False, env=environment(), cwd=self._folder
        )
        assert made.returncode == 0, made.stderr.decode()

    def _connected(self, database: str) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(host="127.0.0.1", port=self._port, user="admin", dbname=database, autocommit=True)

    def _answers(self) -> bool:
        try:
            self._connected("postgres").close()
        except psycopg.OperationalError:
            return False
        return True


def _postgres_program(name: str) -> str:
    """Debian keeps the programs of each version apart."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else required_program(name)


def _as_postgres(command: list[str], *how: str) -> list[str]:
    if os.getuid() != 0:
        return dying_with_us(command)
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *how, *command]


def _launched(command: list[str], log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(env),
            start_new_session=True,
            cwd=log.parent,
        )
