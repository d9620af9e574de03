"""Groups on /metrics. Counted is what has happened since the start; all else is looked up when somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from penstock.broker.coordinators import OnDemand
from penstock.broker.metrics import LabelledValue, Metrics
from penstock.cluster.controller import Controller
from penstock.errors import ApiError
from penstock.replication.replicas import Replicas
from penstock.views.catalogue import Catalogue

if TYPE_CHECKING:
    from penstock.groups.coordinator import GroupCoordinator
    from penstock.groups.execution import GroupCounts


class GroupReadings:
    """What a scrape reads; of a broker that has had no groups yet, nothing."""

    def __init__(
        self,
        groups: OnDemand[GroupCoordinator],
        controller: Controller,
        replicas: Replicas,
        catalogue: Catalogue,
        lag_series: int,
    ) -> None:
        self._groups = groups
        self._controller = controller
        self._replicas = replicas
        self._catalogue = catalogue
        self._lag_series = lag_series

    def register(self, metrics: Metrics) -> None:
        metrics.register_gauges("penstock_groups", "Groups.", ("type", "state"), self._states)
        metrics.register_gauge("penstock_group_members", "Members of all groups.", self._members)
        metrics.register_gauge("penstock_groups_paused", "Groups that are paused, wholly or in part.", self._paused)
        metrics.register_gauge(
            "penstock_group_shards_loading", "Partitions of the groups' topic that are being read.", self._loading
        )
        metrics.register_gauges(
            "penstock_group_lag",
            "Offsets between what a group has committed and the end of the partition.",
            ("group", "topic", "partition"),
            lambda: islice(self._lags(), self._lag_series),
        )
        metrics.register_gauge(
            "penstock_group_lag_left_out", "Partitions of groups whose lag is not shown.", self._left_out
        )
        for name, text, read in _COUNTERS:
            metrics.register_counter(name, text, lambda read=read: self._count(read))  # type: ignore[misc]

    def _count(self, read: Callable[[GroupCounts], int]) -> int:
        made = self._groups.made
        return 0 if made is None else read(made.counts)

    def _states(self) -> Iterable[LabelledValue]:
        made = self._groups.made
        if made is None:
            return []
        from penstock.groups.kinds import kind, state_name

        found = Counter((kind(group), state_name(group)) for group in made.groups())
        return sorted(found.items())

    def _members(self) -> int:
        made = self._groups.made
        return 0 if made is None else sum(len(group.members) for group in made.groups())

    def _paused(self) -> int:
        settings = self._controller.image.settings_by_group
        if not settings:
            return 0
        from penstock.groups.pause import NOT_PAUSED, Pause

        return sum(Pause.of_settings(each) != NOT_PAUSED for each in settings.values())

    def _loading(self) -> int:
        made = self._groups.made
        return 0 if made is None else made.loading

    def _lags(self) -> Iterator[LabelledValue]:
        made = self._groups.made
        for group_id, offsets in made.committed() if made is not None else ():
            for at, committed in offsets.items():
                try:
                    end = self._replicas.find(self._catalogue.base_of(at.topic), at.partition).high_watermark
                except ApiError:
                    continue  # the partition is gone, and its offset about to be
                yield (group_id, at.topic, str(at.partition)), max(0, end - committed.offset)

    def _left_out(self) -> int:
        made = self._groups.made
        total = 0 if made is None else sum(len(offsets) for _, offsets in made.committed())
        return max(0, total - self._lag_series)


_COUNTERS: tuple[tuple[str, str, Callable[[GroupCounts], int]], ...] = (
    ("penstock_group_rebalances", "Plans that groups have agreed upon.", lambda counts: counts.rebalances),
    ("penstock_group_members_expired", "Members not heard from in time.", lambda counts: counts.expired),
    ("penstock_group_members_fenced", "Members put out by a reset of offsets.", lambda counts: counts.fenced),
    ("penstock_offset_commits", "Offsets committed.", lambda counts: counts.commits),
)
