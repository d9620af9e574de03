"""Transactions as applications use them, and the producers that they take turns with."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Unpack

from penstock.ids import TopicPartition
from penstock.sdk.errors import ClosedError, InvalidInputError
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.composing import Extras, Payload, compose
from penstock.sdk.send.transactional import TransactionalProducer
from penstock.sdk.send.watching import Watch

log = logging.getLogger(__name__)

MAX_IDLE = 16
"""Producers that are kept for the next transaction; each has connections and threads of its own."""


class Transaction:
    """Messages that are seen by `read_committed` readers all or not at all. An outbox too."""

    def __init__(self, producer: TransactionalProducer, watch: Watch) -> None:
        self._producer = producer
        self._watch = watch

    def send(self, topic: str, value: Payload, **extras: Unpack[Extras]) -> None:
        """Sends a message with the others; the parameters are those of `Client.send`."""
        self.send_soon(compose(topic, value, **extras))

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        """The future has the receipt once the transaction has committed."""
        return self._watch.send(outgoing, self._producer.send_soon)

    def send_offsets(self, positions: Mapping[TopicPartition, int], group_metadata: Any) -> None:
        """Commits a group's offsets with the messages; `group_metadata` is that of the group's consumer."""
        self._producer.send_offsets(positions, group_metadata)


class Transactions:
    """Producers by transactional id: one transaction of an id at a time, others wait for it. Any thread may."""

    def __init__(self, new_producer: Callable[[str], TransactionalProducer], watch: Watch, name: str) -> None:
        self._new_producer = new_producer
        self._watch = watch
        self._prefix = f"{name}-{uuid.uuid4().hex[:8]}-"
        """Of ids that are made up."""
        self._made_up = 0
        self._changed = threading.Condition()
        self._idle: OrderedDict[str, TransactionalProducer] = OrderedDict()
        self._busy: set[str] = set()
        self._is_closed = False

    @contextmanager
    def transaction(self, transactional_id: str | None = None) -> Iterator[Transaction]:
        """Commits when the block ends, aborts when it raises."""
        if transactional_id == "":
            raise InvalidInputError("transactional_id is empty")
        with self._producer(transactional_id) as producer:
            producer.begin()
            try:
                yield Transaction(producer, self._watch)
                producer.commit()
            except BaseException:
                producer.abort()
                raise

    def close(self) -> None:
        """Lets go of the producers; one that is in a transaction is let go of when that ends."""
        with self._changed:
            self._is_closed = True
            idle = [*self._idle.values()]
            self._idle.clear()
        for producer in idle:
            producer.close()

    @contextmanager
    def _producer(self, wanted: str | None) -> Iterator[TransactionalProducer]:
        name, producer = self._take(wanted)
        try:
            if producer is None:
                producer = self._new_producer(name)
            yield producer
        finally:
            self._give_back(name, producer)

    def _take(self, wanted: str | None) -> tuple[str, TransactionalProducer | None]:
        with self._changed:
            if self._is_closed:
                raise ClosedError("the client was closed")
            name = wanted or self._free_name()
            self._changed.wait_for(lambda: name not in self._busy)
            self._busy.add(name)
            return name, self._idle.pop(name, None)

    def _free_name(self) -> str:
        for name in self._idle:
            if name.startswith(self._prefix):
                return name
        self._made_up += 1
        return f"{self._prefix}{self._made_up}"

    def _give_back(self, name: str, producer: TransactionalProducer | None) -> None:
        let_go: list[TransactionalProducer] = []
        with self._changed:
            self._busy.discard(name)
            if producer is not None:
                if producer.is_spent or self._is_closed:
                    let_go.append(producer)
                else:
                    self._idle[name] = producer
            while len(self._idle) > MAX_IDLE:
                let_go.append(self._idle.popitem(last=False)[1])
            self._changed.notify_all()
        for each in let_go:
            each.close()
