"""kill -9 of a replay by command: every record of the history is in the target, once and in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.replay_kills import run
from support.broker_process import BrokerProcess

pytestmark = pytest.mark.usefixtures("java")


def test_a_replay_that_is_killed_loses_and_doubles_nothing(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    counts = run(broker, topic, tmp_path / "lake", rounds=1, seed=1, rows=50_000)
    print(counts)
    assert counts.sent == counts.replayed == 150_000
    assert counts.killed == 1
    assert (counts.lost, counts.doubled, counts.altered, counts.disordered) == (0, 0, 0, 0), counts
