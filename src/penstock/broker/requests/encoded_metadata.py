"""A cache of encoded Metadata responses."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import NamedTuple

from penstock.parts import Part

_METADATA_KEPT = 32
_CORRELATION_ID = struct.Struct(">i")
_HEAD_BYTES = 8
_SHARED_BYTES = 16 * 1024
"""A longer answer is sent from the one that is kept: many clients that are slow to read it take no memory each."""


class Encoded(NamedTuple):
    """One response, as it was encoded for another request."""

    response: object
    size: bytes
    body: bytes

    def parts(self, correlation_id: int) -> list[Part]:
        """The frame for a request with this correlation id."""
        head = self.size + _CORRELATION_ID.pack(correlation_id)
        return [head + self.body] if len(self.body) <= _SHARED_BYTES else [head, self.body]


class EncodedMetadata:
    """Clients request metadata again and again, and the answers are large: the broker encodes each once per version.

    The handler gives the same object while the cluster does not change, so the object itself is the key.
    """

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[int, int], Encoded] = OrderedDict()

    def find(self, version: int, response: object) -> Encoded | None:
        kept = self._frames.get((id(response), version))
        return kept if kept is not None and kept.response is response else None

    def keep(self, version: int, response: object, frame: bytes) -> None:
        self._frames[id(response), version] = Encoded(response, frame[:4], frame[_HEAD_BYTES:])
        if len(self._frames) > _METADATA_KEPT:
            self._frames.popitem(last=False)
