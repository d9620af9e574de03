"""Which words of a command line name database servers, and where else addresses come from."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from penstock.cli.database_urls import database_urls, without_urls

URL = "mysql://me:s3cr3t@db/orders"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["add", "orders", "--primary", URL, "--json"], ["add", "orders", "--json"]),
        (["add", f"--primary={URL}", "orders", f"--replica={URL}", "--replica", URL], ["add", "orders"]),
        (["add", "orders", "--primary-file", "f", "--replica-file=g", "-b", "h:1"], ["add", "orders", "-b", "h:1"]),
        (["drain", "orders"], ["drain", "orders"]),
    ],
)
def test_only_servers_are_left_out(given: list[str], kept: list[str]) -> None:
    assert without_urls(["python", "penstock", "dbnode", *given]) == ["python", "penstock", "dbnode", *kept]


def test_options_go_before_the_variable_and_the_primary_goes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_SERVERS", f"{URL}1 {URL}2")
    assert database_urls(None, None, None, None) == [f"{URL}1", f"{URL}2"]
    (tmp_path / "file").write_text(f"{URL}3\n")
    assert database_urls(None, tmp_path / "file", [f"{URL}4"], [tmp_path / "file"]) == [
        f"{URL}3",
        f"{URL}4",
        f"{URL}3",
    ]
    with pytest.raises(typer.BadParameter, match="the address of the primary"):
        database_urls(None, None, [URL], None)


def test_a_space_in_an_address_does_not_end_it() -> None:
    assert database_urls("sqlite:///a b.db", None, None, None) == ["sqlite:///a%20b.db"]
