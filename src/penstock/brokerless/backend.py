"""Makes a client of the SDK of a store."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable

from penstock.brokerless.consumer import StoreGroupConsumer
from penstock.brokerless.producer import StoreProducer
from penstock.brokerless.store import QueueStore, StoreAwayError
from penstock.brokerless.transactions import StoreCommitter, StoreTransactionalProducer
from penstock.ids import TopicPartition
from penstock.sdk.backend import PartitionListener, Topics
from penstock.sdk.errors import TopicError
from penstock.sdk.ports import Received
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.sdk.send.observed_producer import SendObserver
from penstock.sdk.send.sending_options import Sending
from penstock.sdk.timers import TimerQuery, WaitingMessage

log = logging.getLogger(__name__)

_WAIT_S = 0.2
_RETRY_S = 0.5
_READ = 100


class StoreBackend:
    """A `Backend` on a store, which it closes."""

    is_away = False
    """Producers and consumers of a store log themselves that it is away."""

    def __init__(self, store: QueueStore, client_id: str | None = None) -> None:
        self._store = store
        self.client_id = client_id or f"penstock-{uuid.uuid4().hex[:12]}"

    @property
    def topics(self) -> Topics:
        return self._store.topics

    def producer(self, sending: Sending, *, endless: bool = False) -> StoreProducer:
        return StoreProducer(self._store, sending, endless=endless)

    def transactional_producer(self, sending: Sending, name: str) -> StoreTransactionalProducer:
        return StoreTransactionalProducer(self._store, name, sending.patience_ms / 1000)

    def group_consumer(self, options: ValidatedOptions) -> StoreGroupConsumer:
        return StoreGroupConsumer(self._store, options)

    def committer(self, group: str, observer: SendObserver) -> StoreCommitter:
        return StoreCommitter(self._store, observer)

    def listen(self, topic: str, partition: int, on_message: Callable[[Received], None]) -> PartitionListener:
        return _StoreListener(self._store, TopicPartition(topic, partition), on_message)

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        try:
            return self._store.read_timers(query)
        except StoreAwayError as error:
            raise TopicError(f"could not read delayed messages of {query.topic}: {error}") from None

    def close(self) -> None:
        self._store.close()


class _StoreListener:
    """Reads a partition from its end on, in a thread."""

    def __init__(self, store: QueueStore, tp: TopicPartition, on_message: Callable[[Received], None]) -> None:
        self._store = store
        self._topic_partition = tp
        self._on_message = on_message
        try:
            self._next = store.bounds(tp)[1]
        except StoreAwayError as error:
            raise TopicError(f"could not read topic {tp.topic}: {error}") from None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._store.wait({self._topic_partition: self._next}, _WAIT_S)
                page = self._store.read(self._topic_partition, self._next, _READ)
            except StoreAwayError as error:
                log.debug("could not read %s: %s", self._topic_partition, error)
                self._closing.wait(_RETRY_S)
                continue
            self._next = page.next_offset
            for message in page.messages:
                self._on_message(message)
