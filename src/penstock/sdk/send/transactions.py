"""Transactions as applications use them, and the pool of producers behind them."""

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
from penstock.sdk.backend import TransactionalProducer
from penstock.sdk.errors import ClosedError
from penstock.sdk.payloads.codecs import JSON_ONLY, Codecs
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.observed_producer import SendObserver
from penstock.sdk.send.outgoing_message import SendOptions, Value, compose
from penstock.sdk.send.sending_options import check_transactional_id

log = logging.getLogger(__name__)

MAX_IDLE = 16
"""Idle producers to keep; each has its own connections and threads."""


class Transaction:
    """Messages that `read_committed` readers see together or not at all. `Client.transaction` creates it."""

    def __init__(self, producer: TransactionalProducer, observer: SendObserver, codecs: Codecs = JSON_ONLY) -> None:
        self._producer = producer
        self._observer = observer
        self._codecs = codecs

    def send(self, topic: str, value: Value, **options: Unpack[SendOptions]) -> None:
        """Send a message in the transaction. The arguments are those of `Client.send`.

        Raises:
            InvalidInputError: An argument is invalid.
        """
        self.send_soon(compose(topic, value, self._codecs, **options))

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        """Send a prepared message; the future holds the receipt once the transaction has committed."""
        return self._observer.send(outgoing, self._producer.send_soon)

    def send_offsets(self, positions: Mapping[TopicPartition, int], group_metadata: Any) -> None:
        """Commit offsets of a consumer group in the transaction.

        Args:
            positions: The next offset to read, by partition.
            group_metadata: `consumer_group_metadata()` of the group's confluent-kafka consumer.

        Raises:
            TransactionError: The group coordinator did not accept the offsets.
        """
        self._producer.send_offsets(positions, group_metadata)


class TransactionPool:
    """Producers by transactional id. Transactions with one id run one after the other. Thread-safe."""

    def __init__(self, new_producer: Callable[[str], TransactionalProducer], observer: SendObserver, name: str) -> None:
        self._new_producer = new_producer
        self._observer = observer
        self._prefix = f"{name}-{uuid.uuid4().hex[:8]}-"
        """The prefix of generated ids."""
        self._made_up = 0
        self._changed = threading.Condition()
        self._idle: OrderedDict[str, TransactionalProducer] = OrderedDict()
        self._busy: set[str] = set()
        self._is_closed = False

    @contextmanager
    def transaction(self, transactional_id: str | None = None, codecs: Codecs = JSON_ONLY) -> Iterator[Transaction]:
        """Commit when the block ends, abort when it raises; `codecs` encode objects that are sent."""
        check_transactional_id(transactional_id)
        with self._producer(transactional_id) as producer:
            producer.begin()
            try:
                yield Transaction(producer, self._observer, codecs)
                producer.commit()
            except BaseException:
                producer.abort()
                raise

    def close(self) -> None:
        """Close the producers; one with an open transaction is closed when that ends."""
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
                raise ClosedError("the client is closed")
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
                if producer.has_failed or self._is_closed:
                    let_go.append(producer)
                else:
                    self._idle[name] = producer
            while len(self._idle) > MAX_IDLE:
                let_go.append(self._idle.popitem(last=False)[1])
            self._changed.notify_all()
        for each in let_go:
            each.close()
