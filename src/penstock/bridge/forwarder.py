"""Sends pages of messages to the cluster: as transactions with a progress record, or at least once.

Blocking; one thread at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Protocol

from penstock.bridge.progress import RowKey, decode_progress, encode_progress, last_progress
from penstock.clock import Clock
from penstock.sdk.errors import SendError, TransactionError
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.kafka.producer import KafkaProducer
from penstock.sdk.kafka.settings import producer_settings, transactional_settings
from penstock.sdk.kafka.transactional_producer import KafkaTransactionalProducer
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.sending_options import Sending

_SENDING = Sending(delivery="exactly-once", tries=3, try_timeout="10s", linger="2ms")
_TIMEOUT_S = 30.0
_TIMEOUT_MS = 30_000


class RefusedError(Exception):
    """The cluster refuses one of the messages for good."""

    def __init__(self, reason: str, sent: Sequence[int] = (), *, is_spent: bool = False) -> None:
        super().__init__(reason)
        self.sent = frozenset(sent)
        """Those that are durable all the same, by their number."""
        self.is_spent = is_spent
        """Whether the forwarder has to be started again."""


class Forwarder(Protocol):
    """Sends for one shard."""

    def start(self, incarnation: bytes) -> list[RowKey]:
        """Replace the bridge that sent for this shard before; return the rows that its last transaction sent."""
        ...

    def forward(self, messages: Sequence[Outgoing], keys: Sequence[RowKey]) -> None:
        """Return when all are durable. Raises RefusedError, SendError or TransactionError."""
        ...

    def close(self) -> None: ...


class TransactionalForwarder:
    """All messages of a page and its progress record, or nothing."""

    def __init__(
        self, connection: ConnectionSettings, name: str, progress_topic: str, partition: int, clock: Clock
    ) -> None:
        self._connection = connection
        self._settings = connection.settings_for(
            transactional_settings(_SENDING, name)
            | {"transaction.timeout.ms": _TIMEOUT_MS, "message.timeout.ms": _TIMEOUT_MS}
        )
        self._name = name
        self._progress_topic = progress_topic
        self._partition = partition
        self._clock = clock
        self._incarnation = b""
        self._producer: KafkaTransactionalProducer | None = None

    def start(self, incarnation: bytes) -> list[RowKey]:
        self.close()
        self._incarnation = incarnation
        self._producer = KafkaTransactionalProducer(self._settings, _TIMEOUT_S, self._clock)
        key = self._name.encode()
        found = last_progress(self._connection, self._progress_topic, self._partition, key, self._clock)
        return [] if found is None else decode_progress(found, incarnation)

    def forward(self, messages: Sequence[Outgoing], keys: Sequence[RowKey]) -> None:
        producer = self._producer
        assert producer is not None, "started first"
        progress = Outgoing(
            topic=self._progress_topic,
            value=encode_progress(self._incarnation, keys),
            key=self._name.encode(),
            partition=self._partition,
        )
        futures: list[Future[Receipt]] = []
        try:
            producer.begin()
            futures += [producer.send_soon(each) for each in messages]
            futures.append(producer.send_soon(progress))
            producer.commit()
        except TransactionError:
            producer.abort()
            refusal = _refusal(futures[: len(messages)])
            if refusal is not None:
                raise RefusedError(str(refusal), is_spent=producer.has_failed) from None
            raise

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None


class PlainForwarder:
    """Each message at least once."""

    def __init__(self, connection: ConnectionSettings, clock: Clock) -> None:
        settings = producer_settings(replace(_SENDING, delivery="at-least-once"))
        self._settings = connection.settings_for(settings)
        self._clock = clock
        self._producer: KafkaProducer | None = None

    def start(self, incarnation: bytes) -> list[RowKey]:
        self.close()
        self._producer = KafkaProducer(self._settings, self._clock)
        return []

    def forward(self, messages: Sequence[Outgoing], keys: Sequence[RowKey]) -> None:
        producer = self._producer
        assert producer is not None, "started first"
        results: dict[int, Receipt | SendError] = {}
        for number, each in enumerate(messages):
            producer.produce(each, partial(results.__setitem__, number), _TIMEOUT_S)
        if not producer.flush(_TIMEOUT_S + 1):
            raise SendError("the cluster did not acknowledge all messages in time", is_retriable=True)
        errors = [result for result in results.values() if isinstance(result, SendError)]
        refusals = [error for error in errors if not error.is_retriable]
        if refusals:
            raise RefusedError(str(refusals[0]), [number for number in results if isinstance(results[number], Receipt)])
        if errors:
            raise errors[0]

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None


def new_member_id() -> str:
    """A name that no other bridge has, of this process."""
    return f"bridge-{uuid.uuid4().hex}"


def _refusal(futures: Sequence[Future[Receipt]]) -> SendError | None:
    for future in futures:
        error = future.exception(timeout=0) if future.done() else None
        if isinstance(error, SendError) and not error.is_retriable:
            return error
    return None
