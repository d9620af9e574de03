"""The answer to a commit of which everything was accepted.

It is the same whenever the same partitions are committed, so it is encoded once.
"""

from __future__ import annotations

import struct

from penstock.protocol import apis
from penstock.protocol.messages.offset_commit import OffsetCommitResponse, OffsetCommitResponseTopic

_SIZE_AND_CORRELATION_ID = struct.Struct(">ii").pack


class AcceptedCommit(OffsetCommitResponse):
    """To requests of one version."""

    __slots__ = ("_body",)

    def __init__(self, throttle_time_ms: int = 0, *, topics: tuple[OffsetCommitResponseTopic, ...]) -> None:
        super().__init__(throttle_time_ms=throttle_time_ms, topics=topics)
        self._body: bytes | None = None

    def frame(self, version: int, correlation_id: int) -> bytes:
        """The frame for a request with this correlation id."""
        if self._body is None:
            self._body = apis.encode_response(apis.OFFSET_COMMIT, version, 0, self)[8:]
        return _SIZE_AND_CORRELATION_ID(len(self._body) + 4, correlation_id) + self._body
