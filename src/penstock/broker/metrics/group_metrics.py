"""Groups on /metrics: counters since the start, and values that are looked up at every scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from penstock.broker.coordinators import OnDemand
from penstock.broker.metrics.catalogue import (
    GROUP_COMMITTED_OFFSET,
    GROUP_LAG,
    GROUP_LAG_LEFT_OUT,
    GROUP_MEMBERS,
    GROUP_MEMBERS_EXPIRED,
    GROUP_MEMBERS_FENCED,
    GROUP_REBALANCES,
    GROUP_SHARDS_LOADING,
    GROUPS,
    GROUPS_PAUSED,
    OFFSET_COMMITS,
    Family,
)
from penstock.broker.metrics.registry import Metrics, Sample
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError
from penstock.ids import TopicPartition
from penstock.replication.replicas import Replicas
from penstock.views.catalogue import Catalogue

if TYPE_CHECKING:
    from penstock.groups.coordinator import GroupCoordinator
    from penstock.groups.offsets import Committed
    from penstock.groups.outcome_writer import GroupCounts


class GroupReadings:
    """What a scrape reads; of a broker that has had no groups yet, nothing."""

    def __init__(
        self,
        groups: OnDemand[GroupCoordinator],
        metadata: MetadataChanges,
        replicas: Replicas,
        catalogue: Catalogue,
        lag_series: int,
    ) -> None:
        self._groups = groups
        self._metadata = metadata
        self._replicas = replicas
        self._catalogue = catalogue
        self._lag_series = lag_series

    def register(self, metrics: Metrics) -> None:
        metrics.register_source((GROUPS, GROUP_MEMBERS), self._groups_and_members)
        metrics.register(GROUPS_PAUSED, self._paused)
        metrics.register(GROUP_SHARDS_LOADING, self._loading)
        metrics.register_source((GROUP_COMMITTED_OFFSET, GROUP_LAG, GROUP_LAG_LEFT_OUT), self._offsets)
        for family, read in _COUNTERS:
            metrics.register(family, lambda read=read: self._count(read))  # type: ignore[misc]

    def _count(self, read: Callable[[GroupCounts], int]) -> int:
        made = self._groups.made
        return 0 if made is None else read(made.counts)

    def _groups_and_members(self) -> Iterator[Sample | None]:
        states: Counter[tuple[str, str]] = Counter()
        members = 0
        made = self._groups.made
        if made is not None:
            from penstock.groups.group_types import kind, state_name

            for group in list(made.groups()):
                states[kind(group), state_name(group)] += 1
                members += len(group.members)
                yield None
        for labels, count in sorted(states.items()):
            yield GROUPS, labels, count
        yield GROUP_MEMBERS, (), members

    def _paused(self) -> int:
        settings = self._metadata.image.settings_by_group
        if not settings:
            return 0
        from penstock.groups.pause import NOT_PAUSED, Pause

        return sum(Pause.of_settings(each) != NOT_PAUSED for each in settings.values())

    def _loading(self) -> int:
        made = self._groups.made
        return 0 if made is None else made.loading

    def _offsets(self) -> Iterator[Sample | None]:
        made = self._groups.made
        groups = [] if made is None else list(made.committed())
        shown = list(islice(_each_offset(groups), self._lag_series))
        left_out = -len(shown)
        for _, offsets in groups:
            left_out += len(offsets)
            yield None
        yield GROUP_LAG_LEFT_OUT, (), max(0, left_out)
        for group_id, at, offset in shown:
            labels = (group_id, at.topic, str(at.partition))
            yield GROUP_COMMITTED_OFFSET, labels, offset
            try:
                end = self._replicas.find(self._catalogue.base_of(at.topic), at.partition).high_watermark
            except ApiError:
                continue  # another broker has the partition, or it is gone
            yield GROUP_LAG, labels, max(0, end - offset)


def _each_offset(
    groups: Iterable[tuple[str, Mapping[TopicPartition, Committed]]],
) -> Iterator[tuple[str, TopicPartition, int]]:
    for group_id, offsets in groups:
        for at, committed in offsets.items():
            yield group_id, at, committed.offset


_COUNTERS: tuple[tuple[Family, Callable[[GroupCounts], int]], ...] = (
    (GROUP_REBALANCES, lambda counts: counts.rebalances),
    (GROUP_MEMBERS_EXPIRED, lambda counts: counts.expired),
    (GROUP_MEMBERS_FENCED, lambda counts: counts.fenced),
    (OFFSET_COMMITS, lambda counts: counts.commits),
)
