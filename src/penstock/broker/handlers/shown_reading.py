"""What one fetch sees of topics that have no log of their own: views, and those that show what waits in others."""

from __future__ import annotations

from penstock.broker.handlers.reading import ClientReading
from penstock.broker.handlers.timer_reading import TimerReading
from penstock.broker.handlers.view_reading import ViewReading
from penstock.cluster.timer_topics import TimerTopic, timer_topic
from penstock.delay.delays import Delays
from penstock.protocol.fetch import FetchPartition, FetchResult
from penstock.replication.partition import Partition
from penstock.views.catalogue import Catalogue, View

Shown = View | TimerTopic
"""Both say which topic they show something of: their `base`."""


class ShownReading:
    """A consumer of such topics."""

    def __init__(self, client: ClientReading, catalogue: Catalogue, delays: Delays) -> None:
        self._catalogue = catalogue
        self._views = ViewReading(client, catalogue)
        self._timers = TimerReading(delays, committed_only=client.committed_only)

    def find(self, topic: str) -> Shown | None:
        """What this topic shows; None if it has a log of its own."""
        return self._catalogue.find(topic) or timer_topic(topic)

    @property
    def is_searching(self) -> bool:
        """There is more to look at, now."""
        return self._views.is_searching or self._timers.is_searching

    @property
    def held(self) -> int:
        """Bytes that have been found so far."""
        return self._views.held() + self._timers.held()

    def held_of(self, shown: Shown, index: int) -> int:
        """Bytes that have been found so far, in one partition."""
        return self._views.held(shown, index) if isinstance(shown, View) else self._timers.held(shown, index)

    async def read(
        self, shown: Shown, partition: Partition, wanted: FetchPartition, room: int, *, is_first: bool
    ) -> FetchResult:
        """What was found so far, at most `room` bytes; see `Reading.read`."""
        if isinstance(shown, View):
            return await self._views.read(shown, partition, wanted, room, is_first=is_first)
        return await self._timers.read(shown, partition, wanted, room, is_first=is_first)

    def completed(self, shown: Shown, result: FetchResult) -> FetchResult:
        """The result as it is sent: it takes the consumer past what is not shown."""
        if isinstance(shown, View):
            return self._views.completed(shown, result)
        return self._timers.completed(shown, result)
