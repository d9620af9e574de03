"""A message as the scripts take it, and as a stream has it: value, key, headers, and which of them there are. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.brokerless.record_codec import decode_headers
from penstock.ids import TopicPartition
from penstock.records.records import encode_headers
from penstock.sdk.ports import Headers, Outgoing, Received

Fields = tuple[str, bytes, bytes, bytes]
"""Letters of the parts that there are, value, key, headers."""


def fields_of(value: bytes | None, key: bytes | None, headers: Headers) -> Fields:
    has = ("" if value is None else "v") + ("" if key is None else "k") + ("h" if headers else "")
    return has, value or b"", key or b"", encode_headers(headers) if headers else b""


def message_of(has: str, value: bytes, key: bytes, headers: bytes) -> Outgoing:
    """What `fields_of` was given, as a message to no topic."""
    return Outgoing(
        "", value if "v" in has else None, key if "k" in has else None, decode_headers(headers) if "h" in has else ()
    )


def received(tp: TopicPartition, entry_id: bytes, entry: Mapping[bytes, bytes]) -> Received:
    """An entry of a stream."""
    headers = entry.get(b"h")
    return Received(
        tp.topic,
        tp.partition,
        int(entry_id.partition(b"-")[0]) - 1,
        entry.get(b"v"),
        entry.get(b"k"),
        () if headers is None else decode_headers(headers),
        int(entry[b"t"]),
    )
