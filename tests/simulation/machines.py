"""The code under test, as the simulated brokers call it; a planted bug puts something else in one of the places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.cluster.decisions import elections
from penstock.cluster.decisions.elections import IsUnclean
from penstock.cluster.metadata import PartitionImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.replication import divergence
from penstock.replication.divergence import Divergence, Position, Step
from penstock.replication.leadership import Leadership
from penstock.storage.epochs import EpochHistory


@dataclass(frozen=True, slots=True)
class Machines:
    """What decides."""

    leadership: type[Leadership] = Leadership
    bury: Callable[[MetadataDraft, BrokerId, IsUnclean], None] = elections.bury
    step_down: Callable[[MetadataDraft, BrokerId], None] = elections.step_down
    welcome: Callable[..., None] = elections.welcome
    prefer: Callable[..., PartitionImage] = elections.prefer
    position_of: Callable[[EpochHistory, int], Position] = divergence.position_of
    next_step: Callable[[Code, Divergence | None, int, Position, EpochHistory], Step] = divergence.next_step
    is_out_of_range: Callable[[Position, int, int], bool] = divergence.is_out_of_range
    diverges: Callable[[Position, EpochHistory, int], Divergence | None] = divergence.diverges


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """In milliseconds. Shorter than in a real cluster, in about the same proportions."""

    lease: float = 900.0
    beat: float = 150.0
    fetch_wait: float = 80.0
    request_timeout: float = 300.0
    followed_within: float = 400.0
    """How long after a fetch a leader whose lease may be over still counts as followed."""
    retention: float = 5000.0
    whole_within: float = 12_000.0
    """After the faults have stopped."""
