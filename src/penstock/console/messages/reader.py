"""Reads messages of a topic as a consumer without a group. Every call blocks; the console makes it in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as LibraryPartition

from penstock.admin import AdminError, UnreachableError
from penstock.admin.errors import REQUEST_TIMED_OUT, admin_error
from penstock.console.polling.cluster_link import ClusterLink
from penstock.sdk.kafka.librdkafka import received_of
from penstock.sdk.kafka.unused_group import concerns_unused_group
from penstock.sdk.ports import Received

_POLL_S = 0.1
_BATCH = 500
_SMALL = {"fetch.message.max.bytes": 1 << 20, "queued.max.messages.kbytes": 4096, "fetch.wait.max.ms": 50}


@dataclass(frozen=True, slots=True)
class ReadPage:
    """Messages, and where each partition goes on."""

    messages: tuple[Received, ...]
    next: Mapping[int, int]
    """Without the partitions that were read to their end."""


def read_page(
    link: ClusterLink,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    limit: int,
    max_bytes: int,
    timeout_s: float,
) -> ReadPage:
    """The first messages in ranges of offsets (from, until), as many as fit."""
    left = {partition: start for partition, (start, end) in ranges.items() if start < end}
    found: list[Received] = []
    size = 0
    with closing(scan(link, topic, ranges, timeout_s=timeout_s)) as messages:
        for message in messages:
            found.append(message)
            size += len(message.key or b"") + len(message.value or b"")
            left[message.partition] = message.offset + 1
            if left[message.partition] >= ranges[message.partition][1]:
                del left[message.partition]
            if len(found) >= limit or size >= max_bytes:
                break
        else:
            left = {}
    return ReadPage(tuple(found), left)


def scan(
    link: ClusterLink,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    timeout_s: float,
    is_stopped: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int], None] = lambda count: None,
) -> Generator[Received, None, None]:
    """Every message in ranges of offsets, in order within a partition. UnreachableError if nothing comes for
    `timeout_s`.
    """
    open_until = {partition: end for partition, (start, end) in ranges.items() if start < end}
    if not open_until:
        return
    with closing(link.consumer(**_SMALL)) as consumer:
        consumer.assign([LibraryPartition(topic, each, ranges[each][0]) for each in open_until])
        heard_s = time.monotonic()
        while open_until and not is_stopped():
            batch = consumer.consume(_BATCH, _POLL_S)
            if batch:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > timeout_s:
                raise UnreachableError(REQUEST_TIMED_OUT, f"no message of {topic} came within {timeout_s:g} s")
            for message in batch:
                error = message.error()
                if error is not None and concerns_unused_group(error):
                    continue
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        open_until.pop(partition, None)
                    else:
                        raise admin_error(error)
                elif partition in open_until:
                    if offset >= open_until[partition]:
                        del open_until[partition]
                        continue
                    yield received_of(message)
                    if offset + 1 >= open_until[partition]:
                        del open_until[partition]
            if batch:
                on_progress(len(batch))
            _close_finished(consumer, topic, open_until)


def _close_finished(consumer: Consumer, topic: str, open_until: dict[int, int]) -> None:
    """Ends partitions whose last offsets are no messages: markers of transactions, what was compacted away."""
    if not open_until:
        return
    try:
        for each in consumer.position([LibraryPartition(topic, partition) for partition in open_until]):
            if each.offset >= open_until[each.partition]:
                # What is still in our hands lies before this position.
                open_until.pop(each.partition, None)
    except KafkaException as error:
        raise admin_error(error) from None


def read_one(link: ClusterLink, topic: str, partition: int, offset: int, timeout_s: float) -> Received:
    """One message; RESOURCE_NOT_FOUND if there is none at the offset."""
    with closing(scan(link, topic, {partition: (offset, offset + 1)}, timeout_s=timeout_s)) as messages:
        for message in messages:
            if message.offset == offset:
                return message
    raise AdminError("RESOURCE_NOT_FOUND", f"there is no message at {topic}/{partition}/{offset}")
