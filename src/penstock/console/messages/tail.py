"""Following a topic live, at a bounded rate: what comes faster is skipped on the broker, not read and thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as LibraryPartition

from penstock.admin.errors import admin_error
from penstock.clock import Clock
from penstock.console.errors import BusyError
from penstock.console.polling.cluster_link import ClusterLink
from penstock.console.settings import MessageSettings
from penstock.sdk.kafka.librdkafka import received_of
from penstock.sdk.kafka.unused_group import concerns_unused_group
from penstock.sdk.ports import Received

_TURN_S = 1.0
_WATERMARK_S = 5.0
_NO_FAILURE = frozenset({KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET})
_SMALL = {
    "fetch.message.max.bytes": 256 << 10,
    "queued.max.messages.kbytes": 1024,
    "fetch.wait.max.ms": 200,
    "auto.offset.reset": "latest",
    "enable.partition.eof": False,
}


@dataclass(frozen=True, slots=True)
class TailTurn:
    """What came in one second; `skipped` offsets were left out."""

    messages: tuple[Received, ...]
    skipped: int


class Tails:
    """All viewers that follow a topic, a bounded number."""

    def __init__(self, settings: MessageSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._count = 0

    async def follow(self, link: ClusterLink, topic: str, partitions: Sequence[int]) -> AsyncGenerator[TailTurn, None]:
        """Turns of a second each, until the viewer leaves or `tail_ms` is over."""
        if self._count >= self._settings.tails:
            raise BusyError(f"{self._count} viewers follow topics, which is the most; close one first")
        self._count += 1
        consumer: Consumer | None = None
        try:
            consumer = link.consumer(**_SMALL)
            consumer.assign([LibraryPartition(topic, each, -1) for each in partitions])
            until_ms = self._clock.monotonic_ms() + self._settings.tail_ms
            while self._clock.monotonic_ms() < until_ms:
                began_ms = self._clock.monotonic_ms()
                yield await asyncio.to_thread(self._turn, consumer, topic, partitions)
                spent_s = (self._clock.monotonic_ms() - began_ms) / 1000
                await asyncio.sleep(max(0.0, _TURN_S - spent_s))
        finally:
            self._count -= 1
            if consumer is not None:
                await asyncio.shield(asyncio.to_thread(consumer.close))

    def _turn(self, consumer: Consumer, topic: str, partitions: Sequence[int]) -> TailTurn:
        rate = self._settings.tail_rate
        found: list[Received] = []
        for message in consumer.consume(rate, _TURN_S):
            error = message.error()
            if error is None:
                found.append(received_of(message))
            elif error.code() not in _NO_FAILURE and not concerns_unused_group(error):
                raise admin_error(error)
        skipped = self._jump(consumer, topic, partitions) if len(found) >= rate else 0
        return TailTurn(tuple(found), skipped)

    def _jump(self, consumer: Consumer, topic: str, partitions: Sequence[int]) -> int:
        """To the end, so that a fast topic costs a slow viewer's share only."""
        skipped = 0
        try:
            for each in consumer.position([LibraryPartition(topic, partition) for partition in partitions]):
                _, end = consumer.get_watermark_offsets(each, timeout=_WATERMARK_S)
                if 0 <= each.offset < end:
                    skipped += end - each.offset
                    consumer.seek(LibraryPartition(topic, each.partition, end))
        except KafkaException as error:
            raise admin_error(error) from None
        return skipped
