"""MariaDB, PostgreSQL and SQLite for benchmarks: each commit survives a power loss, as in production."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.servers.process import Launch, ServerError, ServerProcess, free_ports
from penstock.config.database_address import DatabaseAddress
from penstock.errors import PenstockError
from penstock.sql.database import Database

_START_MS = 60_000
_CALL_MS = 120_000
_MYSQL_USER = """\
create database if not exists bench;
create user if not exists bench@'127.0.0.1' identified by 'bench';
grant all on bench.* to bench@'127.0.0.1';
"""


def databases() -> tuple[str, ...]:
    """The kinds that can be measured on this machine."""
    found = ["sqlite"]
    if shutil.which("mariadbd") and shutil.which("mariadb-install-db"):
        found.append("mariadb")
    if _postgres_folder() is not None and (os.getuid() != 0 or shutil.which("setpriv")):
        found.append("postgresql")
    return tuple(sorted(found))


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[str]:
    """A server, or a folder for files, while the `with` lasts; gives the URL of its database."""
    folder.mkdir(parents=True)
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'bench.db'}"
        return
    launch, url = prepared(kind, folder)
    server = ServerProcess(launch)
    try:
        yield url
    finally:
        server.stop()


def prepared(kind: str, folder: Path) -> tuple[Launch, str]:
    """A server that is ready to be started on a folder that is there, and the URL of its database."""
    return _mariadb(folder) if kind == "mariadb" else _postgresql(folder)


async def opened(url: str, connections: int) -> Database:
    """Waits until the server answers."""
    try:
        return await Database.open(
            DatabaseAddress.parse(url), connections=connections, timeout_ms=_CALL_MS, patience_ms=_START_MS
        )
    except PenstockError as error:
        raise ServerError(str(error)) from error


def _mariadb(folder: Path) -> tuple[Launch, str]:
    (port,) = free_ports(1)
    data, user = folder / "data", getpass.getuser()
    _done(["mariadb-install-db", "--no-defaults", f"--user={user}", f"--datadir={data}", "--skip-test-db"])
    (folder / "init.sql").write_text(_MYSQL_USER)
    command = (
        "mariadbd",
        "--no-defaults",
        f"--user={user}",
        f"--datadir={data}",
        # In its folder: a whole path may be longer than a socket's may be.
        "--socket=server.sock",
        f"--pid-file={folder / 'pid'}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        f"--init-file={folder / 'init.sql'}",
        "--skip-name-resolve",
        "--innodb-buffer-pool-size=512M",
        "--innodb-flush-log-at-trx-commit=1",
        "--max-allowed-packet=64M",
    )
    launch = Launch(address=f"127.0.0.1:{port}", command=command, folder=folder)
    return launch, f"mysql://bench:bench@127.0.0.1:{port}/bench"


def _postgresql(folder: Path) -> tuple[Launch, str]:
    programs = _postgres_folder()
    assert programs is not None
    (port,) = free_ports(1)
    data = folder / "data"
    # It refuses to run as root.
    other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    if other:
        for each in (folder, *folder.parents[: len(folder.parents) - 2]):
            each.chmod(0o755)
        shutil.chown(folder, "postgres", "postgres")
    password = folder / "password"
    password.write_text("bench")
    access = ["-U", "bench", "-A", "scram-sha-256", f"--pwfile={password}"]
    _done([*other, str(programs / "initdb"), "-D", str(data), *access])
    command = (*other, str(programs / "postgres"), "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1")
    command += ("-c", "unix_socket_directories=", "-c", "shared_buffers=512MB")
    launch = Launch(address=f"127.0.0.1:{port}", command=command, folder=folder)
    return launch, f"postgresql://bench:bench@127.0.0.1:{port}/postgres"


def _postgres_folder() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: int(each.parent.name))
    return found[-1] if found else None


def _done(command: list[str]) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise ServerError(f"{command[0]} failed: {made.stderr.strip()}")
