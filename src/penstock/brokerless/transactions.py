"""Transactions on a store.

What belongs to a transaction waits in the client's memory and goes to the store in one call, so that nothing of it is
in the store before it is decided, and a client that dies leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from penstock.brokerless.consumer import GroupMembership
from penstock.brokerless.partitioner import partition_of_key
from penstock.brokerless.producer import new_producer_id
from penstock.brokerless.store import (
    FencedClaimError,
    GroupOffsets,
    IdFence,
    QueueStore,
    SendBatch,
    Sequenced,
    StoreAwayError,
    StoreRefusedError,
)
from penstock.clock import Clock, SystemClock
from penstock.ids import TopicPartition
from penstock.sdk.errors import FencedError, SendError, TopicError, TransactionError
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.receive.exactly_once import RefusedError
from penstock.sdk.send.buffered_producer import promise
from penstock.sdk.send.observed_producer import SendObserver

_RETRY_MS = 100


class _Router:
    """Chooses partitions for messages, and numbers them so that a repeated transaction is recognised."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._producer_id = new_producer_id()
        self._next: dict[TopicPartition, int] = {}
        self._turn = 0

    def batches(self, messages: Sequence[Outgoing]) -> tuple[list[SendBatch], list[tuple[int, int]]]:
        """The messages by partition, and for each message its batch and its place there."""
        by_partition: dict[TopicPartition, list[Outgoing]] = {}
        at: list[tuple[TopicPartition, int]] = []
        for message in messages:
            tp = self._partition_of(message)
            of_partition = by_partition.setdefault(tp, [])
            at.append((tp, len(of_partition)))
            of_partition.append(message)
        numbers = {tp: number for number, tp in enumerate(by_partition)}
        batches = [
            SendBatch(tp, of_partition, Sequenced(self._producer_id, self._next.get(tp, 0)))
            for tp, of_partition in by_partition.items()
        ]
        return batches, [(numbers[tp], place) for tp, place in at]

    def used(self, batches: Sequence[SendBatch]) -> None:
        """Their numbers are not used again."""
        for batch in batches:
            self._next[batch.topic_partition] = batch.sequence.first + len(batch.messages)

    def _partition_of(self, message: Outgoing) -> TopicPartition:
        topics = self._store.topics
        if topics.shape(message.topic) is None:
            topics.create(message.topic)
        partitions = topics.partitions(message.topic)
        if message.partition is not None:
            if message.partition >= partitions:
                raise TopicError(f"topic {message.topic} has no partition {message.partition}: it has {partitions}")
            return TopicPartition(message.topic, message.partition)
        if message.key is not None:
            return TopicPartition(message.topic, partition_of_key(message.key, partitions))
        self._turn += 1
        return TopicPartition(message.topic, self._turn % partitions)


class StoreTransactionalProducer:
    """A `TransactionalProducer` on a store."""

    has_failed = False

    def __init__(self, store: QueueStore, name: str, timeout_s: float, clock: Clock | None = None) -> None:
        self._store = store
        self._name = name
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._router = _Router(store)
        self._messages: list[tuple[Outgoing, Future[Receipt]]] = []
        self._offsets: GroupOffsets | None = None
        self._fence = self._fenced()

    def begin(self) -> None:
        self._messages, self._offsets = [], None

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        future = promise()
        self._messages.append((outgoing, future))
        return future

    def send_offsets(self, positions: Mapping[TopicPartition, int], group_metadata: Any) -> None:
        self._offsets = offsets_of(positions, group_metadata)

    def commit(self) -> None:
        outgoing = [message for message, _ in self._messages]
        try:
            receipts = commit_all(self._store, self._router, outgoing, self._offsets, self._fence, self._until_ms())
        except FencedError:
            self.has_failed = True
            raise
        for (_, future), receipt in zip(self._messages, receipts, strict=True):
            future.set_result(receipt)
        self.begin()

    def abort(self) -> None:
        messages = self._messages
        self.begin()
        for _, future in messages:
            future.set_exception(SendError("the transaction was aborted", is_retriable=True))

    def close(self) -> None:
        self.abort()

    def _fenced(self) -> IdFence:
        until_ms = self._until_ms()
        while True:
            try:
                return self._store.fence(self._name)
            except StoreAwayError as error:
                if self._clock.monotonic_ms() >= until_ms:
                    raise TransactionError(f"could not begin to use {self._name}: {error}") from None
                self._store.wait({}, _RETRY_MS / 1000)

    def _until_ms(self) -> float:
        return self._clock.monotonic_ms() + self._timeout_s * 1000


class StoreCommitter:
    """Commits the transactions of an exactly-once subscription; the claims of its member fence it."""

    def __init__(self, store: QueueStore, observer: SendObserver, timeout_s: float = 20.0) -> None:
        self._store = store
        self._observer = observer
        self._timeout_s = timeout_s
        self._clock = SystemClock()
        self._router = _Router(store)

    def commit(self, outgoing: Sequence[Outgoing], positions: Mapping[TopicPartition, int], group: object) -> None:
        shown: list[Outgoing] = []
        futures = [self._observer.send(each, lambda message: _noted(message, shown)) for each in outgoing]
        until_ms = self._clock.monotonic_ms() + self._timeout_s * 1000
        try:
            receipts = commit_all(self._store, self._router, shown, offsets_of(positions, group), None, until_ms)
        except TransactionError as error:
            for future in futures:
                future.set_exception(SendError(str(error), is_retriable=True))
            raise
        for future, receipt in zip(futures, receipts, strict=True):
            future.set_result(receipt)

    def close(self) -> None:
        pass


def _noted(message: Outgoing, shown: list[Outgoing]) -> Future[Receipt]:
    shown.append(message)
    return promise()


def offsets_of(positions: Mapping[TopicPartition, int], group_metadata: Any) -> GroupOffsets:
    """The offsets of a member, with the epochs of its claims."""
    assert isinstance(group_metadata, GroupMembership), group_metadata
    epochs = {tp: group_metadata.epochs[tp] for tp in positions if tp in group_metadata.epochs}
    if len(epochs) < len(positions):
        raise TransactionError("could not commit the transaction: partitions were taken from this member")
    return GroupOffsets(group_metadata.group, group_metadata.member, positions, epochs)


def commit_all(
    store: QueueStore,
    router: _Router,
    outgoing: Sequence[Outgoing],
    offsets: GroupOffsets | None,
    fence: IdFence | None,
    until_ms: float,
) -> list[Receipt]:
    """Commit messages and offsets in one call of the store, repeated while it is away. Raises `TransactionError`."""
    clock = SystemClock()
    is_unknown = False
    batches: list[SendBatch] = []
    at: list[tuple[int, int]] = []
    while True:
        try:
            if not is_unknown:
                batches, at = router.batches(outgoing)
            written = store.commit_transaction(batches, offsets, fence)
        except StoreAwayError as error:
            is_unknown = is_unknown or error.is_outcome_unknown
            if clock.monotonic_ms() >= until_ms:
                if is_unknown:
                    router.used(batches)
                raise TransactionError(f"could not commit the transaction: {error}", is_unknown=is_unknown) from None
            store.wait({}, _RETRY_MS / 1000)
        except FencedClaimError as error:
            raise FencedError(f"could not commit the transaction: {error}") from None
        except TopicError as error:
            raise TransactionError(f"could not commit the transaction: {error}") from None
        except StoreRefusedError as error:
            if error.place is not None:
                raise RefusedError(at.index(error.place), str(error)) from None
            raise TransactionError(f"could not commit the transaction: {error}") from None
        else:
            router.used(batches)
            tps = [batches[batch].topic_partition for batch, _ in at]
            return [
                Receipt(tp.topic, tp.partition, written[batch][place])
                for tp, (batch, place) in zip(tps, at, strict=True)
            ]
