"""Two bridges killed and paused at random: with a transactional target nothing is lost, repeated or early."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.kills import KillPlan, run_kills
from support.broker_process import BrokerProcess
from support.stores import NewDatabase


@pytest.mark.parametrize(
    ("kinds", "arguments"),
    [
        (["sqlite"], ["--plan", "days", "--tables", "2"]),
        # A batch is stored in two databases, one after the other.
        (["mariadb", "sqlite"], ["--tables", "2", "--batch", "50"]),
    ],
)
def test_nothing_is_lost_repeated_or_early(
    broker: BrokerProcess, topic: str, new_database: NewDatabase, tmp_path: Path, kinds: list[str], arguments: list[str]
) -> None:
    databases = "\n".join(new_database(kind) for kind in kinds)
    plan = KillPlan(messages=400, seconds=12, seed=16, arguments=arguments)
    report = run_kills(broker.kafka, topic, tmp_path, databases, plan)
    assert report.kills >= 2
    assert (report.lost, report.repeated, report.early) == (0, 0, 0), str(report)


def test_without_transactions_nothing_is_lost_or_early(
    broker: BrokerProcess, topic: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    plan = KillPlan(messages=300, seconds=8, seed=5, arguments=["--delivery", "at-least-once"])
    report = run_kills(broker.kafka, topic, tmp_path, new_database("sqlite"), plan)
    assert (report.lost, report.early) == (0, 0), str(report)
