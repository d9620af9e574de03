"""Fetches of topics without a log of their own, which show another topic's records: views and timer topics."""

from __future__ import annotations

from penstock.broker.handlers.fetch.partition_reads import ConsumerReads
from penstock.broker.handlers.fetch.timer_topic_reads import TimerTopicReads
from penstock.broker.handlers.fetch.view_reads import ViewReads
from penstock.cluster.timer_topics import TimerTopic, timer_topic
from penstock.delay.delays import Delays
from penstock.protocol.fetch import FetchPartition, FetchResult
from penstock.replication.partition import Partition
from penstock.views.catalogue import Catalogue, View

DerivedTopic = View | TimerTopic
"""Both name the topic whose records they show: their `base`."""


class DerivedTopicReads:
    """What one fetch reads of such topics."""

    def __init__(self, client: ConsumerReads, catalogue: Catalogue, delays: Delays) -> None:
        self._catalogue = catalogue
        self._views = ViewReads(client, catalogue)
        self._timers = TimerTopicReads(delays, committed_only=client.committed_only)

    def find(self, topic: str) -> DerivedTopic | None:
        """What this topic shows; None if it has a log of its own."""
        return self._catalogue.find(topic) or timer_topic(topic)

    @property
    def is_searching(self) -> bool:
        """Whether a search has not come to the end of its log yet."""
        return self._views.is_searching or self._timers.is_searching

    @property
    def held(self) -> int:
        """Bytes that have been found so far."""
        return self._views.held() + self._timers.held()

    def held_of(self, derived: DerivedTopic, index: int) -> int:
        """Bytes that have been found so far, in one partition."""
        return self._views.held(derived, index) if isinstance(derived, View) else self._timers.held(derived, index)

    async def read(
        self, derived: DerivedTopic, partition: Partition, wanted: FetchPartition, room: int, *, is_first: bool
    ) -> FetchResult:
        """What was found so far, at most `room` bytes; see `PartitionReads.read`."""
        if isinstance(derived, View):
            return await self._views.read(derived, partition, wanted, room, is_first=is_first)
        return await self._timers.read(derived, partition, wanted, room, is_first=is_first)

    def completed(self, derived: DerivedTopic, result: FetchResult) -> FetchResult:
        """The result as it is sent: it takes the consumer past records that the topic does not show."""
        if isinstance(derived, View):
            return self._views.completed(derived, result)
        return self._timers.completed(derived, result)
