"""What this broker's commits of the metadata did to leaders and in-sync sets, counted since its start.

Counted is what was committed, by who committed it: each change counts once in a cluster, however many brokers see it,
and however many commits a broker that is behind reads at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.cluster.metadata import NO_LEADER, PartitionImage, TopicImage


class CommitCounts:
    """Counters that only rise."""

    def __init__(self) -> None:
        self.leader_elections = 0
        self.unclean_leader_elections = 0
        self.isr_shrinks = 0
        self.isr_expands = 0

    def note(self, before: Mapping[str, TopicImage], after: Mapping[str, TopicImage], touched: Iterable[str]) -> None:
        """These topics were committed; one that is new, or gone, has no change of leaders."""
        for name in touched:
            old, new = before.get(name), after.get(name)
            if old is None or new is None or old.id != new.id:
                continue
            # Those behind the end of the shorter one are new, or gone.
            for was, now in zip(old.partitions, new.partitions, strict=False):
                if was is not now and was != now:
                    self._note_partition(was, now)

    def _note_partition(self, was: PartitionImage, now: PartitionImage) -> None:
        if now.leader not in (was.leader, NO_LEADER):
            self.leader_elections += 1
            if now.leader not in was.in_sync:
                self.unclean_leader_elections += 1
        # A replica that was moved away has not fallen behind.
        if any(broker not in now.in_sync and broker in now.replicas for broker in was.in_sync):
            self.isr_shrinks += 1
        if any(broker not in was.in_sync for broker in now.in_sync):
            self.isr_expands += 1
