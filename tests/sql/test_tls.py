"""TLS to a database server, by options of its address: the server is checked, and so is its name."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Database
from penstock.sql.errors import DatabaseError
from support.certificates import Authority
from support.stores import MariaDbProcess, PostgresProcess
from support.waiting import PATIENCE_S

TLS_OF_MARIADB = "select variable_value from information_schema.session_status where variable_name = 'Ssl_version'"
TLS_OF_POSTGRESQL = "select version from pg_stat_ssl where pid = pg_backend_pid()"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def mariadb(authority: Authority, tmp_path: Path) -> Iterator[MariaDbProcess]:
    """A server on which the user needs TLS."""
    certificate, key = authority.sign("mariadb")
    options = [f"--ssl-cert={certificate}", f"--ssl-key={key}", f"--ssl-ca={authority.file}"]
    server = MariaDbProcess(tmp_path / "mariadb", options=options)
    try:
        server.start()
        server.administer("alter user penstock@'127.0.0.1' require ssl")
        yield server
    finally:
        server.kill()


def show(server: PostgresProcess, files: tuple[Path, Path]) -> None:
    """From the next time that the server reads its settings, new connections see this certificate."""
    for name, made in zip(("cert", "key"), files, strict=True):
        file = server.data / f"server.{name}"
        shutil.copy(made, file)
        file.chmod(0o600)
        if os.getuid() == 0:
            shutil.chown(file, "postgres", "postgres")
        server.administer(f"alter system set ssl_{name}_file = '{file}'")


@pytest.fixture
def postgresql(authority: Authority) -> Iterator[PostgresProcess]:
    server = PostgresProcess()
    try:
        server.start()
        show(server, authority.sign("postgresql"))
        server.administer("alter system set ssl = on")
        (server.data / "pg_hba.conf").write_text(
            "host all admin 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
        )
        server.administer("select pg_reload_conf()")
        yield server
    finally:
        server.remove()


async def asked(url: str, question: str) -> str:
    database = await Database.open(DatabaseAddress.parse(url), connections=1, timeout_ms=10_000, patience_ms=0)
    try:
        rows = await database.run(lambda session: session.execute(question), is_read_only=True)
    finally:
        await database.close()
    return str(rows[0][0])


async def test_mariadb(mariadb: MariaDbProcess, authority: Authority, tmp_path: Path) -> None:
    url = mariadb.create_database("secured")
    checked = f"{url}?ssl_ca={authority.file}"
    assert (await asked(checked, TLS_OF_MARIADB)).startswith("TLSv1.")
    stranger = Authority(tmp_path / "stranger")
    with pytest.raises(DatabaseError):
        await asked(f"{url}?ssl_ca={stranger.file}", TLS_OF_MARIADB)
    # Without options the library encrypts if the server can, and does not check whom it talks to.
    assert (await asked(url, TLS_OF_MARIADB)).startswith("TLSv1.")
    authority.sign("mariadb", host="127.0.0.9")
    mariadb.administer("flush ssl")
    with pytest.raises(DatabaseError, match="certificate verify failed"):
        await asked(checked, TLS_OF_MARIADB)


async def test_postgresql(postgresql: PostgresProcess, authority: Authority, tmp_path: Path) -> None:
    url = postgresql.create_database("secured")
    checked = f"{url}?sslmode=verify-full&sslrootcert="
    assert (await asked(f"{checked}{authority.file}", TLS_OF_POSTGRESQL)).startswith("TLSv1.")
    stranger = Authority(tmp_path / "stranger")
    for address in (f"{url}?sslmode=disable", f"{checked}{stranger.file}"):
        with pytest.raises(DatabaseError):
            await asked(address, TLS_OF_POSTGRESQL)
    show(postgresql, authority.sign("elsewhere", host="127.0.0.9"))
    postgresql.administer("select pg_reload_conf()")
    async with asyncio.timeout(PATIENCE_S):
        # The reload takes a moment.
        with pytest.raises(DatabaseError, match="does not match host name"):
            while True:
                await asked(f"{checked}{authority.file}", TLS_OF_POSTGRESQL)
