"""Fetches of timer topics: a search for each partition, kept while the fetch waits.

Only the leader of a partition can answer. A reader may ask for any offset; behind the last message the leader answers
that this is the end.
"""

from __future__ import annotations

from penstock.broker.handlers.fetch.partition_reads import result_of
from penstock.cluster.timer_topics import TimerTopic
from penstock.delay.delays import Delays
from penstock.delay.listing import ByDueTime, ById, Showing
from penstock.errors import ApiError, Code
from penstock.protocol.fetch import FetchPartition, FetchResult
from penstock.replication.partition import Partition
from penstock.storage.contract import NOTHING
from penstock.views.waymark import waymark


class TimerTopicReads:
    """A reader of what waits."""

    def __init__(self, delays: Delays, *, committed_only: bool) -> None:
        self._delays = delays
        self._committed_only = committed_only
        self._searches: dict[tuple[str, int], Showing] = {}

    @property
    def is_searching(self) -> bool:
        """There is more to look at, now."""
        return any(not search.is_at_end for search in self._searches.values())

    def held(self, topic: TimerTopic | None = None, index: int = -1) -> int:
        """Bytes that have been found so far, in one partition of a topic or in all."""
        if topic is None:
            return sum(search.size for search in self._searches.values())
        search = self._searches.get((topic.name, index))
        return 0 if search is None else search.size

    async def read(
        self, topic: TimerTopic, partition: Partition, wanted: FetchPartition, room: int, *, is_first: bool
    ) -> FetchResult:
        """What was found so far, at most `room` bytes and the headers of batches; see `PartitionReads.read`."""
        partition.check_epoch(wanted.current_leader_epoch)
        partition.check_leads()
        if wanted.fetch_offset < 0:
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"{wanted.fetch_offset} is no offset")
        listing = await self._delays.listing(partition)
        end, search = wanted.fetch_offset, None
        if listing is not None and (is_first or room > 0):
            place = (topic.name, wanted.index)
            search = self._searches.get(place)
            if search is None:
                kind = ById if topic.by_id else ByDueTime
                search = self._searches[place] = kind(listing, wanted.fetch_offset, partition.leader_epoch)
            await search.advance(min(wanted.max_bytes, room))
            end = search.end
        result = result_of(partition, wanted, end, end, NOTHING)
        return result._replace(
            log_start_offset=0,
            aborted=() if self._committed_only else None,
            parts=() if search is None else tuple(search.parts),
            size=0 if search is None else search.size,
        )

    def completed(self, topic: TimerTopic, result: FetchResult) -> FetchResult:
        """The result as it is sent: it takes the reader past what is not shown, and to the end."""
        search = self._searches.get((topic.name, result.index))
        if search is None or result.error_code or search.position <= search.shown_end:
            return result
        mark = waymark(search.position - 1, search.leader_epoch)
        return result._replace(parts=(*search.parts, mark), size=search.size + len(mark))
