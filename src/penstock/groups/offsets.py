"""How far a group has come in each partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.ids import TopicPartition


class Committed(NamedTuple):
    """One committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expire_ms: int = -1
    """A time after which it is void, set by clients that still ask for it; -1: the broker's own rule counts."""


class OffsetRecord(NamedTuple):
    """A commit, or with None its removal, as it is written to the log."""

    group_id: str
    at: TopicPartition
    committed: Committed | None


@dataclass(frozen=True, slots=True)
class GroupTombstone:
    """A group that is gone."""

    group_id: str
