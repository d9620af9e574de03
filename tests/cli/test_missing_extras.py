"""What people see who have not installed a library that not everybody needs: the command that installs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.programs import PENSTOCK, environment

BLOCKER = """
import os, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run_without(folder: Path, libraries: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in an environment in which these libraries are not installed."""
    (folder / "sitecustomize.py").write_text(BLOCKER)
    given = environment()
    given |= {"BLOCKED": libraries, "PYTHONPATH": f"{folder}{os.pathsep}{given.get('PYTHONPATH', '')}"}
    return subprocess.run(command, capture_output=True, text=True, env=given, timeout=60, check=False)


@pytest.mark.parametrize(
    ("library", "extra", "arguments"),
    [
        (
            "kazoo",
            "cluster",
            ["serve", "--coordinator", "zk://127.0.0.1:1/x", "--listen", "127.0.0.1:0", "--data", "lake"],
        ),
        ("cryptography", "sql", ["dbnode", "key"]),
        ("httpx", "push", ["push", "orders", "http://127.0.0.1:1/", "--group", "g"]),
        ("pyspark", "pipeline", ["pipeline", "sql", "--lake", "lake", "select 1"]),
        ("pyarrow", "pipeline", ["pipeline", "sql", "--lake", "lake", "select 1"]),
        ("deltalake", "pipeline", ["pipeline", "compact", "--lake", "lake"]),
    ],
)
def test_a_command_says_how_to_install_what_it_needs(
    broker: BrokerProcess, tmp_path: Path, library: str, extra: str, arguments: list[str]
) -> None:
    arguments = [str(tmp_path / each) if each == "lake" else each for each in arguments]
    done = run_without(tmp_path, library, PENSTOCK, "--bootstrap", broker.kafka, *arguments)
    assert done.returncode == 1, done
    said = done.stderr.splitlines()[-1]
    assert said.endswith(f"needs the library {library}, which is not installed: pip install 'penstock[{extra}]'")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("library", "command", "code"),
    [
        ("sqlalchemy", "pip install 'penstock[sql]'", "penstock.SqlStore('sqlite://')"),
        ("pymysql", "pip install 'penstock[sql]'", "penstock.SqlStore('mysql+pymysql://u:p@h/d')"),
        ("psycopg", "pip install 'penstock[sql]'", "penstock.SqlStore('postgresql+psycopg://u:p@h/d')"),
        ("redis", "pip install 'penstock[redis]'", "penstock.RedisStore('redis://h')"),
        ("opentelemetry", "pip install 'penstock[otel]'", "penstock.OpenTelemetryHooks"),
    ],
)
def test_the_sdk_says_how_to_install_what_it_needs(tmp_path: Path, library: str, command: str, code: str) -> None:
    done = run_without(tmp_path, library, sys.executable, "-c", f"import penstock; {code}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("penstock.extras.MissingExtraError: ")
    assert done.stderr.rstrip().endswith(f"which is not installed: {command}")
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize(("library", "scheme"), [("pymysql", "mysql"), ("psycopg", "postgresql")])
def test_a_database_says_how_to_install_what_it_needs(tmp_path: Path, library: str, scheme: str) -> None:
    code = (
        "import asyncio; from penstock.config.database_address import DatabaseAddress;"
        "from penstock.sql.database import Database;"
        f"asyncio.run(Database.open(DatabaseAddress.parse('{scheme}://user:secret@127.0.0.1:1/queues')))"
    )
    done = run_without(tmp_path, library, sys.executable, "-c", code)
    assert done.stderr.splitlines()[-1] == (
        f"penstock.extras.MissingExtraError: the database {scheme}://user@127.0.0.1:1/queues needs the library"
        f" {library}, which is not installed: pip install 'penstock[sql]'"
    )


def test_a_missing_extra_is_an_import_error(tmp_path: Path) -> None:
    code = "try:\n    from penstock import SqlStore\nexcept ImportError as error:\n    print(error)"
    done = run_without(tmp_path, "sqlalchemy", sys.executable, "-c", code)
    assert done.stdout == (
        "penstock.SqlStore needs the library sqlalchemy, which is not installed: pip install 'penstock[sql]'\n"
    )
