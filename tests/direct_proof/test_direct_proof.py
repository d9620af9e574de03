"""Short runs of the proofs that `make prove-direct` does for longer."""

from __future__ import annotations

from pathlib import Path

from direct_proof.run import run

_SECONDS = 1.0


def test_clients_are_killed_while_the_database_restarts(tmp_path: Path) -> None:
    only = ("a producer", "a consumer", "kill -9, started at once")
    report = run(tmp_path, _SECONDS, 3, producers=3, consumers=2, only=only, overlap=3)
    assert report.is_good, str(report)


def test_brokers_and_clients_use_one_partition_and_are_killed(tmp_path: Path) -> None:
    only = ("any broker, started at once", "a producer", "a consumer")
    report = run(
        tmp_path, _SECONDS, 3, brokers=2, kafka_producers=2, producers=2, consumers=1, lease_s=2.0, only=only, overlap=3
    )
    assert report.is_good, str(report)
