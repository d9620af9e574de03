"""Shards of groups as a broker that comes up finds them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.groups.records import decode
from penstock.groups.shard import Shard
from penstock.replication.state_log import StateRecord


def replayed(shard: Shard, log: Iterable[StateRecord], now_ms: int) -> Shard:
    """A new shard after it has read a log."""
    for written in log:
        record = decode(written)
        assert record is not None
        shard.apply(record, now_ms)
    shard.loaded(now_ms)
    return shard
