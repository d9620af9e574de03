"""Values of a store as JSON with byte strings beside it, and back. Pure.

What cannot be read raises `FrameError`, or one of `MALFORMED` for a wrong shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.brokerless.store import (
    Claim,
    Granted,
    GroupClaims,
    GroupMember,
    GroupOffsets,
    IdFence,
    ReadPage,
    SendBatch,
    Sequenced,
)
from penstock.brokerless.tcp.frames import Blobs, Frame, FrameError
from penstock.ids import TopicPartition
from penstock.sdk.ports import Headers, Outgoing, Received
from penstock.sdk.timers import WaitingMessage

MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What taking JSON of another shape apart raises."""


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise FrameError(f"{value!r} is not a text")
    return value


def number(value: Any) -> int:
    if type(value) is not int:
        raise FrameError(f"{value!r} is not a whole number")
    return value


def optional_number(value: Any) -> int | None:
    return None if value is None else number(value)


def tp_of(value: Any) -> TopicPartition:
    topic, partition = value
    if number(partition) < 0:
        raise FrameError(f"{partition} is not the number of a partition")
    return TopicPartition(text(topic), partition)


def tps_of(value: Any) -> list[TopicPartition]:
    return [tp_of(each) for each in value]


def numbers_by_tp(value: Any) -> dict[TopicPartition, int]:
    return {tp_of(tp): number(each) for tp, each in value}


def by_tp(values: Mapping[TopicPartition, int]) -> list[Any]:
    return [[list(tp), each] for tp, each in values.items()]


def put_headers(headers: Headers, blobs: Blobs) -> list[Any]:
    return [[name, blobs.put(value)] for name, value in headers]


def headers_of(value: Any, frame: Frame) -> Headers:
    return tuple((text(name), frame.blob(place)) for name, place in value)


def put_batch(batch: SendBatch, blobs: Blobs) -> list[Any]:
    messages = [
        [blobs.put(each.value), blobs.put(each.key), put_headers(each.headers, blobs), each.timestamp_ms]
        for each in batch.messages
    ]
    return [list(batch.topic_partition), messages, batch.sequence.producer_id, batch.sequence.first]


def batch_of(value: Any, frame: Frame) -> SendBatch:
    tp, messages, producer_id, first = value
    at = tp_of(tp)
    made = [
        Outgoing(
            at.topic,
            frame.blob(content),
            frame.blob(key),
            headers_of(headers, frame),
            timestamp_ms=optional_number(timestamp_ms),
        )
        for content, key, headers, timestamp_ms in messages
    ]
    return SendBatch(at, made, Sequenced(number(producer_id), number(first)))


def put_page(page: ReadPage, blobs: Blobs) -> list[Any]:
    messages = [
        [each.offset, blobs.put(each.value), blobs.put(each.key), put_headers(each.headers, blobs), each.timestamp_ms]
        for each in page.messages
    ]
    return [messages, page.next_offset]


def page_of(value: Any, tp: TopicPartition, frame: Frame) -> ReadPage:
    messages, next_offset = value
    made = [
        Received(
            tp.topic,
            tp.partition,
            number(offset),
            frame.blob(content),
            frame.blob(key),
            headers_of(headers, frame),
            optional_number(timestamp_ms),
        )
        for offset, content, key, headers, timestamp_ms in messages
    ]
    return ReadPage(made, number(next_offset))


def put_timers(waiting: Sequence[WaitingMessage], blobs: Blobs) -> list[Any]:
    return [
        [each.partition, each.due_ms, blobs.put(each.value), blobs.put(each.key), put_headers(each.headers, blobs)]
        for each in waiting
    ]


def timers_of(value: Any, topic: str, frame: Frame) -> list[WaitingMessage]:
    return [
        WaitingMessage(
            topic, number(partition), number(due_ms), frame.blob(content), frame.blob(key), headers_of(headers, frame)
        )
        for partition, due_ms, content, key, headers in value
    ]


def put_state(state: GroupClaims) -> list[Any]:
    members = [[member.name, sorted(member.topics)] for member in state.members]
    return [members, [[list(tp), claim.member, claim.epoch] for tp, claim in state.claims.items()]]


def state_of(value: Any) -> GroupClaims:
    members, claims = value
    return GroupClaims(
        [GroupMember(text(name), frozenset(text(topic) for topic in topics)) for name, topics in members],
        {tp_of(tp): Claim(text(member), number(epoch)) for tp, member, epoch in claims},
    )


def put_grants(grants: Mapping[TopicPartition, Granted]) -> list[Any]:
    return [[list(tp), grant.epoch, grant.committed] for tp, grant in grants.items()]


def grants_of(value: Any) -> dict[TopicPartition, Granted]:
    return {tp_of(tp): Granted(number(epoch), optional_number(committed)) for tp, epoch, committed in value}


def put_offsets(offsets: GroupOffsets | None) -> list[Any] | None:
    if offsets is None:
        return None
    return [offsets.group, offsets.member, by_tp(offsets.positions), by_tp(offsets.epochs)]


def offsets_of(value: Any) -> GroupOffsets | None:
    if value is None:
        return None
    group, member, positions, epochs = value
    made = GroupOffsets(text(group), text(member), numbers_by_tp(positions), numbers_by_tp(epochs))
    if made.positions.keys() - made.epochs.keys():
        raise FrameError("an offset has no epoch")
    return made


def put_fence(fence: IdFence | None) -> list[Any] | None:
    return None if fence is None else [fence.transactional_id, fence.epoch]


def fence_of(value: Any) -> IdFence | None:
    if value is None:
        return None
    transactional_id, epoch = value
    return IdFence(text(transactional_id), number(epoch))
