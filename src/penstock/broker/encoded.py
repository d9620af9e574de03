"""Metadata answers, kept as bytes."""

from __future__ import annotations

import struct
from collections import OrderedDict

from penstock.protocol import apis
from penstock.protocol.apis import METADATA

_METADATA_KEPT = 32
_CORRELATION_ID = struct.Struct(">i")


class EncodedMetadata:
    """Metadata answers are asked for again and again and are large: each is encoded once for each version.

    The handler gives the same object while the cluster does not change, so the object itself is the key.
    """

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[int, int], tuple[object, bytes]] = OrderedDict()

    def encode(self, version: int, correlation_id: int, response: object) -> bytes:
        key = (id(response), version)
        held, frame = self._frames.get(key, (None, b""))
        if held is not response:
            frame = apis.encode_response(METADATA, version, 0, response)
            self._frames[key] = (response, frame)
            if len(self._frames) > _METADATA_KEPT:
                self._frames.popitem(last=False)
        return frame[:4] + _CORRELATION_ID.pack(correlation_id) + frame[8:]
