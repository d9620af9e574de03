"""Members of the new protocol (KIP-848) at work: real clients, a broker that crashes, nothing lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import BrokerFactory
from support.crew import SETTINGS, Crew
from support.waiting import until

NEW = {"protocol": "consumer"}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_join_leave_crash_and_return(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, assignor: str
) -> None:
    with Crew(new_broker(SETTINGS), topic, tmp_path) as crew:
        crew.produce()
        crew.start("a", **NEW, assignor=assignor)
        crew.wait_for_members("a")
        crew.wait_for_more()
        crew.start("b", **NEW, assignor=assignor)
        crew.start("c", **NEW, assignor=assignor)
        crew.wait_for_members("a", "b", "c")
        crew.wait_for_more()
        crew.stop("a")
        crew.kill("b")
        crew.start("d", **NEW, assignor=assignor)
        crew.wait_for_members("c", "d")
        crew.start("a", **NEW, assignor=assignor)
        crew.wait_for_members("a", "c", "d")
        crew.wait_for_more()
        crew.finish()


def test_a_group_goes_on_after_a_restart_and_after_a_crash_of_the_broker(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    broker = new_broker(SETTINGS)
    with Crew(broker, topic, tmp_path) as crew:
        crew.produce()
        for name in "abc":
            crew.start(name, **NEW)
        crew.wait_for_members(*"abc")
        crew.wait_for_more()
        broker.restart()
        crew.wait_for_more()
        # In the middle of a reconciliation.
        crew.start("d", **NEW)
        broker.kill()
        broker.start()
        crew.wait_for_members(*"abcd")
        # One member crashes together with the broker: nobody but its session says that it is gone.
        crew.kill("b")
        broker.kill()
        broker.start()
        crew.wait_for_members(*"acd")
        crew.finish()


def test_a_static_member_that_comes_back_has_what_it_had(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    with Crew(new_broker(SETTINGS | {"groups.consumer_session_timeout_ms": 20_000}), topic, tmp_path) as crew:
        crew.produce()
        for name in "ab":
            crew.start(name, **NEW, instance=f"instance-of-{name}")
        crew.wait_for_members(*"ab")
        crew.wait_for_more()
        before = {name: held_by(crew, name) for name in "ab"}
        given_to_b = len(crew.assignments_of("b"))
        crew.stop("a")
        crew.start("a", **NEW, instance="instance-of-a")
        crew.wait_for_members(*"ab")
        until(lambda: held_by(crew, "a") == before["a"], "a has what it had")
        crew.wait_for_more()
        assert len(crew.assignments_of("b")) == given_to_b, "b was not asked for anything"
        crew.finish()


def test_topics_are_found_by_an_expression(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    with Crew(new_broker(SETTINGS), topic, tmp_path) as crew:
        crew.produce()
        pattern = f"^{topic[:-3]}.+[0-9a-f]$"
        crew.start("a", **NEW, pattern=pattern)
        crew.wait_for_members("a")
        crew.wait_for_more()
        crew.start("b", **NEW, pattern=pattern)
        crew.wait_for_members("a", "b")
        crew.wait_for_more()
        crew.finish()


def held_by(crew: Crew, name: str) -> frozenset[int]:
    """The partitions that a member was told last, by the broker's description of the group."""
    return crew.described()[name]
