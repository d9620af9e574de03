"""kill -9 at random moments, under load from real clients: what was acknowledged is there, in order, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from durability.kill_rounds import SETTINGS, run
from support.broker_process import BrokerProcess


@pytest.mark.parametrize("seed", [1, 2])
def test_every_acknowledged_message_survives_kills(new_broker: Callable[..., BrokerProcess], seed: int) -> None:
    broker = new_broker(SETTINGS)
    counts = run(broker, rounds=6, seed=seed)
    assert counts.rounds == 6
    assert counts.acknowledged > 1000
    assert (counts.lost, counts.duplicated, counts.out_of_order) == (0, 0, 0), counts
    assert "damaged bytes" not in broker.log
    assert "records are missing" not in broker.log
