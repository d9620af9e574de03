"""What a leader tells of its followers' lag."""

from __future__ import annotations

from penstock.ids import BrokerId
from penstock.replication.leadership import LagRules, Leadership

ME, NEAR, FAR = BrokerId(1), BrokerId(2), BrokerId(3)


def test_the_lag_of_a_follower_is_what_it_has_not_fetched() -> None:
    leadership = Leadership(
        ME,
        7,
        (ME, NEAR, FAR),
        (ME, NEAR),
        frozenset({ME, NEAR}),
        start_offset=90,
        high_watermark=80,
        rules=LagRules(max_ms=1000, max_messages=0),
        now_ms=0.0,
    )
    # Nobody has fetched in this epoch: who is in sync has what was acknowledged, the other may have nothing.
    assert dict(leadership.lags(10, 100)) == {NEAR: 20, FAR: 90}
    leadership.fetched(NEAR, 100, 100, 1.0, 0.0)
    leadership.fetched(FAR, 60, 100, 1.0, 0.0)
    assert dict(leadership.lags(10, 100)) == {NEAR: 0, FAR: 40}
    # Retention has gone past one of them: what is left is what it has to fetch.
    assert dict(leadership.lags(70, 100)) == {NEAR: 0, FAR: 30}
