"""`penstock delay-bridge`: what people see who got an option wrong; nothing is connected to then."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.programs import PENSTOCK, run

DATABASE = ("--database", "sqlite:///bridge.db")


def complaint(*options: str) -> str:
    done = run([PENSTOCK, "delay-bridge", "delays", "--group", "g", "-b", "127.0.0.1:1", *options])
    assert done.returncode != 0 and not done.stdout
    said = done.stderr.decode()
    assert said.count("\n") == 1 and "Traceback" not in said, said
    return said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give either --levels, or --database"),
        ([*DATABASE, "--levels", "5"], "give either --levels, or --database"),
        (["--levels", "1m,soon"], "'soon' is not a duration"),
        (["--database", "mysql://u:secret@h/d"], "put the URL into a file"),
        ([*DATABASE, *DATABASE], "a database is given twice"),
        ([*DATABASE, "--plan", "weeks"], "'weeks' is not one of single, days, turns"),
        ([*DATABASE, "--order", "key"], "'key' is not one of arrival, topic"),
        ([*DATABASE, "--delivery", "maybe"], "'maybe' is not one of exactly-once, at-least-once"),
        ([*DATABASE, "--lease", "10ms"], "must be at least 1000 ms"),
        ([*DATABASE, "--http", "8080"], "expected HOST:PORT"),
        ([*DATABASE, "--header-prefix", ""], "must not be empty"),
        (["--database-file", "missing.txt"], "missing.txt cannot be read"),
        ([*DATABASE], "no broker answers (127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options: list[str], said: str) -> None:
    found = complaint(*options)
    assert said in found
    assert "secret" not in found


def test_a_line_of_the_file_that_is_no_address_is_named_without_its_password(tmp_path: Path) -> None:
    file = tmp_path / "databases"
    file.write_text("# ours\n\nmysql://u:secret@h:port/d\n")
    said = complaint("--database-file", str(file))
    assert str(file) in said and "secret" not in said
