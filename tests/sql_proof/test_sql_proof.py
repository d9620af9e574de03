"""A short run of the proof that `make prove-sql` does for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from sql_proof.run import run

_SECONDS = 2.0
_ONLY = ("the leader", "there and back", "kill -9, started at once")


@pytest.mark.parametrize("database", ["mysql", "postgresql"])
def test_writers_of_all_kinds_append_to_one_partition_while_brokers_and_the_database_die(
    database: str, tmp_path: Path
) -> None:
    report = run(tmp_path, _SECONDS, 5, database=database, producers=5, direct=3, lease_s=2.0, only=_ONLY, overlap=2)
    assert report.is_good, str(report)
    assert report.verdict is not None and report.verdict.rolled_back
