"""A producer that writes to topics in memory, and refuses what a broker would refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Unpack

from penstock.brokerless.memory.topics import MemoryTopics
from penstock.clock import Clock
from penstock.ids import TopicPartition
from penstock.sdk.errors import SendError, TransactionError
from penstock.sdk.payloads.codecs import JSON_ONLY, Codecs
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.receive.exactly_once import RefusedError
from penstock.sdk.send.buffered_producer import promise
from penstock.sdk.send.observed_producer import SendObserver
from penstock.sdk.send.outgoing_message import SendOptions, Value, compose
from penstock.sdk.send.send_outcome import Receipts, send_each
from penstock.testing.groups import MemoryGroups


class StubProducer:
    """Writes to topics in memory; nothing is ever in transit."""

    buffered = 0
    spilled = 0

    def __init__(self, topics: MemoryTopics, clock: Clock, on_put: Callable[[], None]) -> None:
        self._topics = topics
        self._clock = clock
        self._on_put = on_put

    def has_room_for(self, count: int, size_bytes: int) -> bool:
        return True

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        future = promise()
        try:
            future.set_result(self.put(outgoing))
        except SendError as error:
            future.set_exception(error)
        return future

    def send_many(self, messages: Sequence[Outgoing], room_s: float = 0.0) -> Future[Receipts]:
        return send_each(messages, self.send_soon, room_s)

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, timeout_s: float) -> None:
        pass

    def put(self, outgoing: Outgoing) -> Receipt:
        partition, offset = self._topics.append(outgoing, self._clock.now_ms())
        self._on_put()
        return Receipt(outgoing.topic, partition, offset)

    def check(self, outgoing: Outgoing) -> None:
        """Raises `SendError` if a broker would refuse the message."""
        self._topics.check(outgoing, self._clock.now_ms())


class StubTransaction:
    """Keeps messages until the commit."""

    def __init__(self, producer: StubProducer, observer: SendObserver, codecs: Codecs = JSON_ONLY) -> None:
        self._producer = producer
        self._observer = observer
        self._codecs = codecs
        self._kept: list[tuple[Outgoing, Future[Receipt]]] = []

    def send(self, topic: str, value: Value, **options: Unpack[SendOptions]) -> None:
        """Send a message in the transaction. The arguments are those of `Client.send`."""
        self.send_soon(compose(topic, value, self._codecs, **options))

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        """The future holds the receipt once the transaction has committed."""
        return self._observer.send(outgoing, self._keep)

    def commit(self) -> None:
        try:
            for outgoing, _ in self._kept:
                self._producer.check(outgoing)
        except SendError as error:
            failure = TransactionError(f"could not commit the transaction: {error}")
            self.abort()
            raise failure from None
        for outgoing, future in self._kept:
            future.set_result(self._producer.put(outgoing))

    def abort(self) -> None:
        for _, future in self._kept:
            future.set_exception(SendError("the transaction was aborted"))

    def _keep(self, outgoing: Outgoing) -> Future[Receipt]:
        future = promise()
        self._kept.append((outgoing, future))
        return future


class StubTransactionCommitter:
    """Commits the transactions of an exactly-once subscription."""

    def __init__(self, producer: StubProducer, observer: SendObserver, groups: MemoryGroups, group: str) -> None:
        self._producer = producer
        self._observer = observer
        self._groups = groups
        self._group = group

    def commit(self, outgoing: Sequence[Outgoing], positions: Mapping[TopicPartition, int], group: object) -> None:
        for index, each in enumerate(outgoing):
            try:
                self._producer.check(each)
            except SendError as error:
                raise RefusedError(index, str(error)) from None
        for each in outgoing:
            self._observer.send(each, self._producer.send_soon)
        self._groups.group(self._group).committed.update(positions)

    def close(self) -> None:
        pass
