"""Planted bugs: each is a machine that does one thing wrong, for the test of the simulation itself."""

from __future__ import annotations

from dataclasses import replace

from penstock.cluster.decisions import elections
from penstock.cluster.decisions.elections import IsUnclean
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.ids import BrokerId
from penstock.replication.divergence import Position
from penstock.replication.leadership import Follower, Heard, Leadership
from penstock.storage.epochs import EpochHistory

from .broker import Broker
from .machines import Machines, Timing
from .run import Plant


class AcknowledgesBeforeReplication(Leadership):
    def raise_watermark(self, own_end: int, now_ms: float) -> bool:
        is_higher = own_end > self.high_watermark
        self.high_watermark = max(own_end, self.high_watermark)
        return is_higher


class CountsTheSmallerSet(Leadership):
    """While a change of the in-sync set is under way, only who is in both sets counts."""

    @property
    def _counted(self) -> frozenset[BrokerId]:
        return self.in_sync if self.proposed is None else self.in_sync & self.proposed


class IgnoresItsLease(Leadership):
    def leads(self, now_ms: float, lease_until_ms: float, followed_within_ms: float) -> bool:
        return True


class TellsEndsWhileFollowed(Leadership):
    """Past its lease it asks nobody whether it still leads, as long as it was followed a moment ago."""

    def is_certain(self, now_ms: float, lease_until_ms: float) -> bool:
        return self.leads(now_ms, lease_until_ms, Timing().followed_within)


class GoesOnWithoutItsPredecessor(Leadership):
    """A follower that has not fetched in this epoch leaves the in-sync set although it may still hold its lease."""

    def _is_behind(self, follower: Follower, own_end: int, now_ms: float) -> bool:
        return super()._is_behind(follower, own_end, now_ms) or (
            follower.end_offset < own_end and now_ms - follower.last_caught_up_ms > self._rules.max_ms
        )


class TrustsLateFetches(Leadership):
    """A fetch counts from when it arrives, not from when it must have been sent."""

    def fetched(
        self,
        follower: BrokerId,
        offset: int,
        own_end: int,
        now_ms: float,
        followed_ms: float,
        heard: Heard | None = None,
    ) -> None:
        super().fetched(follower, offset, own_end, now_ms, now_ms, heard)


class JoinsFromAnywhere(Leadership):
    """Who fetches is in sync, however far it is."""

    def proposal(self, own_end: int, now_ms: float, *, can_write: bool = True) -> frozenset[BrokerId] | None:
        if self.proposed is not None:
            return None
        wanted = self.in_sync | {who for who, follower in self._followers.items() if follower.end_offset >= 0}
        return wanted if wanted != self.in_sync else None


def elects_anybody(draft: MetadataDraft, dead: BrokerId, is_unclean: IsUnclean) -> None:
    elections.bury(draft, dead, lambda topic: True)


def keeps_who_lost_power(draft: MetadataDraft, who: BrokerId, *, has_all: bool, is_unclean: IsUnclean) -> None:
    elections.welcome(draft, who, has_all=True, is_unclean=is_unclean)


def goes_on_in_the_same_epoch(draft: MetadataDraft, dead: BrokerId, is_unclean: IsUnclean) -> None:
    """Others lead, but nothing tells them from the one before."""
    epochs = {topic.name: [part.leader_epoch for part in topic.partitions] for topic in draft.topics.values()}
    elections.bury(draft, dead, is_unclean)
    for topic in list(draft.topics.values()):
        partitions = tuple(
            replace(part, leader_epoch=epoch) for part, epoch in zip(topic.partitions, epochs[topic.name], strict=True)
        )
        draft.put_topic(replace(topic, partitions=partitions))


def says_no_epoch(epochs: EpochHistory, end_offset: int) -> Position:
    """The leader cannot see that the logs differ, and the follower does not cut back."""
    return Position(end_offset, -1)


class BeginsBeforeItsReturn(Broker):
    """A process that starts goes on with what the metadata says of the one before it."""

    @property
    def may_begin(self) -> bool:
        return True


PLANTS = {
    "acknowledges before replication": Plant(Machines(leadership=AcknowledgesBeforeReplication)),
    "does not wait for the larger in-sync set": Plant(Machines(leadership=CountsTheSmallerSet)),
    "elects somebody who is not in sync": Plant(Machines(bury=elects_anybody)),
    "does not cut back": Plant(Machines(position_of=says_no_epoch)),
    "keeps a member in sync that lost power": Plant(Machines(welcome=keeps_who_lost_power)),
    "lets somebody join who has not caught up": Plant(Machines(leadership=JoinsFromAnywhere)),
    "goes on in the same epoch": Plant(Machines(bury=goes_on_in_the_same_epoch)),
    "ignores its lease": Plant(Machines(leadership=IgnoresItsLease)),
    "tells ends past its lease without asking its followers": Plant(Machines(leadership=TellsEndsWhileFollowed)),
    "goes on without a predecessor that may hold its lease": Plant(Machines(leadership=GoesOnWithoutItsPredecessor)),
    "trusts fetches that were long on their way": Plant(Machines(leadership=TrustsLateFetches)),
    "begins before its return is committed": Plant(broker=BeginsBeforeItsReturn),
}
