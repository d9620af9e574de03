"""The costs that are guarded: the same conversation with the broker and with a server that only receives and sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.client.bare import Talk
from bench.client.talks import batch_of, fetch_talk, plain_talk, produce_talk

_SMALL_BYTES = 100
_LARGE_RECORD_BYTES = 1024
_LARGE_RECORDS = 950
"""In a batch of not quite 1 MB."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One of them. `count` is that of a round; the frames are prepared once for all rounds."""

    name: str
    topic: str
    partitions: int = 1
    count: int
    in_flight: int = 1
    records: int = 1
    record_bytes: int = _SMALL_BYTES
    is_fetch: bool = False
    stored: int = 0
    """Batches that a partition has for fetches."""
    margin: float
    """By how much the ratio may rise: more than runs of the same tree differed."""
    is_in_memory: bool = False
    """The broker's data are in a tmpfs. What a shared disk takes from whoever writes varies by a factor of three."""

    @cached_property
    def batch(self) -> bytes:
        return batch_of(self.records, self.record_bytes)

    @cached_property
    def produce(self) -> Talk:
        return produce_talk(self.topic, self.partitions, self.batch, self.in_flight)

    @cached_property
    def talk(self) -> Talk:
        """With the broker."""
        if not self.is_fetch:
            return self.produce
        return fetch_talk(self.topic, self.partitions, self.batch, self.records, self.stored, self.in_flight)

    @cached_property
    def plain(self) -> Talk:
        """With the plain server, which works."""
        return plain_talk(self.talk, works=True)

    @property
    def unit(self) -> str:
        return "us/request" if self.records == 1 else "CPU-s/GB"

    @property
    def units_per_s(self) -> float:
        """What a CPU second for one request is in that unit."""
        return 1e6 if self.records == 1 else 1e9 / len(self.batch)


def costs(*, is_smoke: bool = False) -> Sequence[Cost]:
    """Small requests by the request, large ones by the gigabyte.

    With one request in flight a good part of the cost is that of waking up, which other programs decide.
    """
    small, large = (1000, 8) if is_smoke else (12_000, 80)
    return (
        Cost(name="produce 100 B, 5 in flight", topic="guard-produce", count=small, in_flight=5, margin=0.15),
        Cost(
            name="fetch 100 B, 5 in flight",
            topic="guard-fetch",
            count=small,
            in_flight=5,
            is_fetch=True,
            stored=50,
            margin=0.25,
        ),
        Cost(
            name="produce 1 MB batches, 4 partitions",
            topic="guard-in",
            partitions=4,
            count=large,
            in_flight=2,
            records=_LARGE_RECORDS,
            record_bytes=_LARGE_RECORD_BYTES,
            margin=0.15,
            is_in_memory=True,
        ),
        Cost(
            name="fetch 1 MB, 4 partitions",
            topic="guard-out",
            partitions=4,
            count=8 * large,
            in_flight=2,
            records=_LARGE_RECORDS,
            record_bytes=_LARGE_RECORD_BYTES,
            is_fetch=True,
            stored=10,
            margin=0.2,
        ),
    )
