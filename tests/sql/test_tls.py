"""Connections that check who the server is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Database
from penstock.sql.errors import Denied, Unreachable
from support.programs import required_program, run
from support.stores import MariaDbProcess

from .conftest import query


def openssl(*arguments: str) -> None:
    done = run([required_program("openssl"), *arguments])
    assert done.returncode == 0, done.stderr.decode()


def new_authority(folder: Path, name: str) -> Path:
    """A certificate that others are signed with."""
    pair = ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem"]
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", *pair, "-subj", f"/CN={name}", "-days", "2")
    return folder / f"{name}.pem"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MariaDbProcess]:
    """One with a certificate for 127.0.0.1 by the authority `ours`."""
    authority = new_authority(tmp_path, "ours")
    at = f"{tmp_path}/server"
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{at}.key", "-out", f"{at}.csr", "-subj", "/CN=server")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    by = ["-CA", str(authority), "-CAkey", f"{tmp_path}/ours.key", "-CAcreateserial", "-days", "2"]
    openssl("x509", "-req", "-in", f"{at}.csr", *by, "-extfile", f"{tmp_path}/names", "-out", f"{at}.pem")
    options = [f"--ssl-cert={at}.pem", f"--ssl-key={at}.key", f"--ssl-ca={authority}", "--require-secure-transport"]
    process = MariaDbProcess(tmp_path / "mariadb", options=options)
    try:
        yield process.start()
    finally:
        process.kill()


async def test_a_server_is_taken_for_what_its_certificate_says_and_for_nothing_else(
    server: MariaDbProcess, tmp_path: Path
) -> None:
    address = server.create_database("safe")
    database = await Database.open(DatabaseAddress.parse(f"{address}?ssl_ca={tmp_path}/ours.pem"))
    assert (await database.run(query("SHOW STATUS LIKE 'Ssl_version'")))[0][1].startswith("TLS")
    await database.close()
    other = new_authority(tmp_path, "other")
    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        await Database.open(DatabaseAddress.parse(f"{address}?ssl_ca={other}"))
    by_name = address.replace("127.0.0.1", "localhost")
    with pytest.raises(Unreachable, match="not valid for 'localhost'"):
        await Database.open(DatabaseAddress.parse(f"{by_name}?ssl_ca={tmp_path}/ours.pem"))


async def test_a_certificate_that_is_missing_is_named() -> None:
    with pytest.raises(Denied, match="the file of ssl_ca cannot be read: /absent/ca"):
        await Database.open(DatabaseAddress.parse("mysql://penstock:secret@127.0.0.1:1/queues?ssl_ca=/absent/ca.pem"))
