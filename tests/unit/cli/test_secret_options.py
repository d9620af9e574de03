"""Which words of a command line give a password away."""

from __future__ import annotations

import pytest

from penstock.cli.serve.secret_options import without_secrets

URL = "mysql://me:s3cr3t@db/orders"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["serve", "--sql", URL, "--id", "2"], ["serve", "--id", "2"]),
        (["serve", f"--sql={URL}"], ["serve"]),
        (["serve", "--set", f"sql.url={URL}", "--set", "sql.connections=3"], ["serve", "--set", "sql.connections=3"]),
        (["serve", f"--set=sql.url={URL}", "--set=log.x=y"], ["serve", "--set=log.x=y"]),
        (["serve", "--sql-file", "f", "--data=d"], ["serve", "--sql-file", "f", "--data=d"]),
    ],
)
def test_only_secrets_are_left_out(given: list[str], kept: list[str]) -> None:
    assert without_secrets(["python", "penstock", *given]) == ["python", "penstock", *kept]
