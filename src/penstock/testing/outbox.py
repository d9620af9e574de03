"""A stub's side of sending: what is sent is in its topic at once, or is refused as a broker would refuse it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Unpack

from penstock.clock import Clock
from penstock.ids import TopicPartition
from penstock.sdk.errors import SendError, TransactionError
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.receive.rounds import RefusedError
from penstock.sdk.send.composing import Extras, Payload, compose
from penstock.sdk.send.outboxes import promise
from penstock.sdk.send.watching import Watch
from penstock.testing.groups import MemoryGroups
from penstock.testing.topics import MemoryTopics


class StubOutbox:
    """Sends into topics in memory; nothing is ever on its way."""

    buffered = 0
    spilled = 0

    def __init__(self, topics: MemoryTopics, clock: Clock, on_put: Callable[[], None]) -> None:
        self._topics = topics
        self._clock = clock
        self._on_put = on_put

    def has_room_for(self, outgoing: Outgoing) -> bool:
        return True

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        future = promise()
        try:
            future.set_result(self.put(outgoing))
        except SendError as error:
            future.set_exception(error)
        return future

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, timeout_s: float) -> None:
        pass

    def put(self, outgoing: Outgoing) -> Receipt:
        partition, offset = self._topics.append(outgoing, self._clock.now_ms())
        self._on_put()
        return Receipt(outgoing.topic, partition, offset)

    def check(self, outgoing: Outgoing) -> None:
        """SendError if it would be refused."""
        self._topics.check(outgoing, self._clock.now_ms())


class StubTransaction:
    """What is sent in it is kept until its end."""

    def __init__(self, outbox: StubOutbox, watch: Watch) -> None:
        self._outbox = outbox
        self._watch = watch
        self._kept: list[tuple[Outgoing, Future[Receipt]]] = []

    def send(self, topic: str, value: Payload, **extras: Unpack[Extras]) -> None:
        """Sends a message with the others; the parameters are those of `Client.send`."""
        self.send_soon(compose(topic, value, **extras))

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        """The future has the receipt once the transaction has committed."""
        return self._watch.send(outgoing, self._keep)

    def commit(self) -> None:
        try:
            for outgoing, _ in self._kept:
                self._outbox.check(outgoing)
        except SendError as error:
            failure = TransactionError(f"the transaction was not committed: {error}")
            self.abort()
            raise failure from None
        for outgoing, future in self._kept:
            future.set_result(self._outbox.put(outgoing))

    def abort(self) -> None:
        for _, future in self._kept:
            future.set_exception(SendError("the transaction was aborted"))

    def _keep(self, outgoing: Outgoing) -> Future[Receipt]:
        future = promise()
        self._kept.append((outgoing, future))
        return future


class StubTransactor:
    """Ends the rounds of an exactly-once subscription."""

    def __init__(self, outbox: StubOutbox, watch: Watch, groups: MemoryGroups, group: str) -> None:
        self._outbox = outbox
        self._watch = watch
        self._groups = groups
        self._group = group

    def commit(self, outgoing: Sequence[Outgoing], positions: Mapping[TopicPartition, int], group: object) -> None:
        for index, each in enumerate(outgoing):
            try:
                self._outbox.check(each)
            except SendError as error:
                raise RefusedError(index, str(error)) from None
        for each in outgoing:
            self._watch.send(each, self._outbox.send_soon)
        self._groups.group(self._group).committed.update(positions)

    def close(self) -> None:
        pass
