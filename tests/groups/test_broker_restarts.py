"""The broker goes away and comes back in the middle of a group's work."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import BrokerFactory
from support.crew import SETTINGS, Crew


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_goes_on_after_a_restart_and_after_a_crash_of_the_broker(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, strategy: str
) -> None:
    broker = new_broker(SETTINGS)
    with Crew(broker, topic, tmp_path) as crew:
        crew.produce()
        for name in "abc":
            crew.start(name, strategy=strategy)
        crew.wait_for_members(*"abc")
        crew.wait_for_more()
        broker.restart()
        crew.wait_for_more()
        broker.kill()
        broker.start()
        crew.wait_for_more()
        # One member crashes together with the broker: nobody but its session says that it is gone.
        crew.kill("b")
        broker.kill()
        broker.start()
        crew.wait_for_members(*"ac")
        crew.start("d", strategy=strategy)
        crew.wait_for_members(*"acd")
        crew.finish()


def test_committed_offsets_survive_a_restart(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    broker = new_broker(SETTINGS)
    with Crew(broker, topic, tmp_path) as crew:
        crew.produce()
        crew.start("a")
        crew.wait_for_more()
        crew.finish()
        before = crew.committed()
        assert sum(before.values()) == len(crew.history().produced)
        broker.restart()
        assert crew.committed() == before
        broker.kill()
        broker.start()
        assert crew.committed() == before
