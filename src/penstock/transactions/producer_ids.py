"""Producer ids: unique across crashes."""

from __future__ import annotations

from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code, CoordinationError

_BLOCK = 1000
"""Ids are taken from the coordination tree in blocks; what a crash leaves of a block is never used."""


class ProducerIds:
    """The block of ids that this broker allocates from."""

    def __init__(self, metadata: MetadataChanges) -> None:
        self._metadata = metadata
        self._block = iter(range(0))

    async def next(self) -> int:
        """ApiError if the cluster's coordination cannot be reached."""
        while True:
            for producer_id in self._block:
                return producer_id
            try:
                self._block = iter(await self._metadata.allocate_producer_ids(_BLOCK))
            except CoordinationError as error:
                raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, str(error)) from error
