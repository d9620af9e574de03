"""Fetches of views: a search for each partition, kept while the fetch waits.

A fetch is answered when it has found enough, when its time is over, or when something has failed. Records that were
searched and do not match do not count as enough, but the response takes the consumer past them.
"""

from __future__ import annotations

from penstock.broker.handlers.fetch.partition_reads import NO_REPLICA, ConsumerReads, result_of
from penstock.protocol.fetch import FetchPartition, FetchResult
from penstock.replication.partition import Partition
from penstock.storage.contract import NOTHING
from penstock.views.catalogue import Catalogue, View
from penstock.views.search import Search

_Place = tuple[str, int]


class ViewReads:
    """A consumer of views: sees of their bases what `ConsumerReads` would let it see, and of that what matches."""

    def __init__(self, client: ConsumerReads, catalogue: Catalogue) -> None:
        self._client = client
        self._catalogue = catalogue
        self._searches: dict[_Place, Search] = {}

    @property
    def is_searching(self) -> bool:
        """There is more to look at, now."""
        return any(not search.is_at_end for search in self._searches.values())

    def held(self, view: View | None = None, index: int = -1) -> int:
        """Bytes that have been found so far, in one partition of a view or in all."""
        if view is None:
            return sum(search.size for search in self._searches.values())
        search = self._searches.get((view.name, index))
        return 0 if search is None else search.size

    async def read(
        self, view: View, partition: Partition, wanted: FetchPartition, room: int, *, is_first: bool
    ) -> FetchResult:
        """What is shown of the view so far, at most `room` bytes; see `PartitionReads.read`."""
        preferred = self._client.admitted(partition, wanted)
        high_watermark, last_stable_offset = partition.high_watermark, partition.last_stable_offset
        result = result_of(partition, wanted, high_watermark, last_stable_offset, NOTHING, preferred)
        if self._client.committed_only:
            # What was aborted is left out here already.
            result = result._replace(aborted=())
        if preferred != NO_REPLICA:
            return result
        place = (view.name, wanted.index)
        search = self._searches.get(place)
        if search is None:
            if not (is_first or room > 0):
                return result
            search = self._searches[place] = self._catalogue.search(
                view, partition, wanted.fetch_offset, committed_only=self._client.committed_only
            )
        await search.advance(min(wanted.max_bytes, room), is_first=is_first)
        parts, size = search.shown()
        return result._replace(parts=parts, size=size)

    def completed(self, view: View, result: FetchResult) -> FetchResult:
        """The result as it is sent: it takes the consumer past what does not match."""
        search = self._searches.get((view.name, result.index))
        if search is None or result.error_code:
            return result
        parts, size = search.shown_with_waymark()
        return result._replace(parts=parts, size=size)
