"""Stores of every form, opened as often as a test wants, and short ways to use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.brokerless.store import GroupMember, GroupOffsets, QueueStore, SendBatch, Sequenced
from penstock.ids import TopicPartition
from penstock.sdk.ports import Headers, Outgoing, Received

OpenStore = Callable[[], QueueStore]
"""Opens the queue of a test, as another process would."""
SESSION_MS = 60_000


def outgoing(topic: str, *values: str, headers: Headers = ()) -> list[Outgoing]:
    return [Outgoing(topic, value.encode(), None, headers) for value in values]


def batch(
    tp: TopicPartition, *values: str, producer: int = 1 << 62, first: int = 0, headers: Headers = ()
) -> SendBatch:
    return SendBatch(tp, outgoing(tp.topic, *values, headers=headers), Sequenced(producer, first))


def values(messages: Sequence[Received]) -> list[str]:
    return [(message.value or b"").decode() for message in messages]


def all_values(store: QueueStore, tp: TopicPartition) -> list[str]:
    """Everything in a partition, page by page."""
    found: list[str] = []
    offset = store.bounds(tp)[0]
    while True:
        page = store.read(tp, offset, 7)
        if not page.messages:
            return found
        found += values(page.messages)
        offset = page.next_offset


def joined(store: QueueStore, group: str, name: str, topic: str, session_ms: int = SESSION_MS) -> GroupMember:
    member = GroupMember(name, frozenset({topic}))
    store.heartbeat(group, member, session_ms)
    return member


def offsets(group: str, member: str, tp: TopicPartition, position: int, epoch: int) -> GroupOffsets:
    return GroupOffsets(group, member, {tp: position}, {tp: epoch})
