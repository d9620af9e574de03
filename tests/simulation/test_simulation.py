"""Seeded failures do not break what `docs/internals/cluster.md` promises; the machines under test are the real ones."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.faults import KINDS
from simulation.run import Outcome, simulate

SEEDS = range(1, 151)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [simulate(seed) for seed in SEEDS]


def test_no_seed_loses_or_moves_what_was_acknowledged_and_all_become_whole_again(outcomes: list[Outcome]) -> None:
    assert [f"seed {outcome.seed}: {outcome.violation}" for outcome in outcomes if outcome.violation] == []


def test_every_kind_of_fault_has_happened_and_much_was_acknowledged_and_elected(outcomes: list[Outcome]) -> None:
    counts = sum((outcome.counts for outcome in outcomes), Counter[str]())
    assert [kind for kind in KINDS if not counts[f"fault: {kind}"]] == []
    assert counts["acknowledged"] > 50 * len(SEEDS)
    assert counts["elections"] > 5 * len(SEEDS)
    assert counts["records cut back"] and counts["logs begun anew"] and counts["repeats"]
    assert counts["answered OFFSET_NOT_AVAILABLE"] and counts["controller dies deciding"]


def test_nothing_is_given_up_where_no_power_is_lost(outcomes: list[Outcome]) -> None:
    kept = [outcome for outcome in outcomes if not outcome.counts["fault: power loss"]]
    assert len(kept) > len(SEEDS) / 3
    assert sum(outcome.counts["acknowledged, given up"] for outcome in kept) == 0


def test_a_seed_replays_exactly() -> None:
    first, second = simulate(5, is_traced=True), simulate(5, is_traced=True)
    assert first.trace == second.trace
    assert len(first.trace) > 100
    assert first.counts == second.counts == simulate(5).counts
