"""Commits the transactions of an exactly-once subscription, on a librdkafka producer."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.clock import Clock, SystemClock
from penstock.ids import TopicPartition
from penstock.sdk.errors import SendError, TransactionError
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.kafka.settings import transactional_settings
from penstock.sdk.kafka.transactional_producer import KafkaTransactionalProducer
from penstock.sdk.ports import Outgoing
from penstock.sdk.problem_log import OngoingProblem
from penstock.sdk.receive.exactly_once import RefusedError
from penstock.sdk.send.observed_producer import SendObserver
from penstock.sdk.send.sending_options import Sending

log = logging.getLogger(__name__)

_PATIENCE_S = 8.0
"""For each call of librdkafka."""
_STUCK_S = 12.0
"""A call without progress for this long never returns: librdkafka can lose the lookup of a group's coordinator with its
connection, and the offsets that wait for it have no timeout."""
_CHECK_S = 0.5
_TIMEOUT_MS = 20_000
"""The broker aborts the open transaction of a killed process after this; until then the next owner of its partitions
waits."""


@dataclass(eq=False, slots=True)
class _RunningTransaction:
    """One transaction, in a thread of its own because librdkafka may never return."""

    producer: KafkaTransactionalProducer
    progressed_s: float
    is_given_up: bool = False
    error: TransactionError | None = None


class KafkaTransactionCommitter:
    """Uses one transactional producer at a time, with a random id: the group's generation fences members that lost
    their partitions. Replaces a producer that has failed for good.

    After a failed `commit` the outcome is final: the new producer aborts what the old one left open, and fences it.
    """

    def __init__(
        self, connection: ConnectionSettings, group: str, observer: SendObserver, clock: Clock | None = None
    ) -> None:
        self._group = group
        self._problem = OngoingProblem(
            log,
            f"group {group}: could not start a transactional producer; retrying",
            f"group {group}: the transactional producer has started",
            clock=clock,
            is_explained=lambda: connection.availability.is_away,
        )
        name = f"penstock-{group}-{uuid.uuid4().hex}"
        settings = transactional_settings(Sending(delivery="exactly-once"), name)
        timeouts = {"transaction.timeout.ms": _TIMEOUT_MS, "message.timeout.ms": _TIMEOUT_MS}
        self._settings = connection.settings_for(settings | timeouts)
        self._observer = observer
        self._clock = clock or SystemClock()
        self._producer: KafkaTransactionalProducer | None = None
        self._closed = threading.Event()

    def commit(self, outgoing: Sequence[Outgoing], positions: Mapping[TopicPartition, int], group: object) -> None:
        if self._producer is None:
            self._producer = self._new_producer()
        transaction = _RunningTransaction(self._producer, self._now_s())
        work = threading.Thread(
            target=self._run_transaction,
            args=(transaction, outgoing, positions, group),
            name="penstock-transaction",
            daemon=True,
        )
        work.start()
        while work.is_alive() and not transaction.is_given_up:
            work.join(_CHECK_S)
            transaction.is_given_up = work.is_alive() and self._now_s() - transaction.progressed_s > _STUCK_S
        if transaction.is_given_up:
            log.warning("group %s: a transaction makes no progress; replacing its producer", self._group)
        if transaction.is_given_up or transaction.producer.has_failed:
            self._producer = None
            self._producer = self._new_producer()
        if transaction.is_given_up:
            raise TransactionError("could not commit the transaction: librdkafka does not respond")
        if transaction.error is not None:
            raise transaction.error

    def close(self) -> None:
        self._closed.set()
        if self._producer is not None:
            self._producer.close()

    def _run_transaction(
        self,
        transaction: _RunningTransaction,
        outgoing: Sequence[Outgoing],
        positions: Mapping[TopicPartition, int],
        group: object,
    ) -> None:
        producer, futures = transaction.producer, []
        try:
            producer.begin()
            for each in outgoing:
                futures.append(self._observer.send(each, producer.send_soon))
                transaction.progressed_s = self._now_s()
            producer.send_offsets(positions, group)
            transaction.progressed_s = self._now_s()
            if transaction.is_given_up:
                return
            producer.commit()
        except TransactionError as error:
            transaction.progressed_s, transaction.error = self._now_s(), error
            producer.abort()
            for index, future in enumerate(futures):
                refused = future.exception(timeout=0)
                if isinstance(refused, SendError) and not refused.is_retriable:
                    transaction.error = RefusedError(index, str(refused))
                    return

    def _new_producer(self) -> KafkaTransactionalProducer:
        """Repeats until it succeeds: nothing may continue before the open transaction has ended."""
        while True:
            try:
                producer = KafkaTransactionalProducer(self._settings, _PATIENCE_S, self._clock)
            except TransactionError as error:
                if self._closed.is_set():
                    raise
                self._problem.report(error)
            else:
                self._problem.end()
                return producer

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000
