"""The test of the test: each planted bug is found within 200 seeds."""

from __future__ import annotations

import pytest

from simulation.plants import PLANTS
from simulation.run import simulate


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: str) -> None:
    assert any(simulate(seed, PLANTS[plant]).violation for seed in range(1, 201))
