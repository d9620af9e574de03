"""A short run of the chaos that `make chaos` does for longer."""

from __future__ import annotations

from pathlib import Path

from chaos.run import run

_SECONDS = 15.0
_KINDS = ("any broker", "beyond the lease", "a broker from ZooKeeper and the others", "restarted", "and room again")


def test_a_cluster_that_is_hurt_under_load_loses_nothing(tmp_path: Path) -> None:
    report = run(tmp_path, _SECONDS, seed=11, zookeepers=1, only=_KINDS, is_small=True)
    assert report.is_good, str(report)
    assert report.faults.total() > 1
