"""Committed offsets, and their records."""

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
    """A commit, or with None its deletion, as it is written to the log."""

    group_id: str
    at: TopicPartition
    committed: Committed | None


@dataclass(frozen=True, slots=True)
class GroupTombstone:
    """A deleted group."""

    group_id: str
