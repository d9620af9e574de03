"""Commits the rounds of an exactly-once subscription: what they send and their offsets, in one transaction."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.clock import Clock, SystemClock
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.sdk.access import Access
from penstock.sdk.errors import SendError, TransactionError
from penstock.sdk.ports import Outgoing
from penstock.sdk.receive.rounds import RefusedError
from penstock.sdk.send.sending import Sending, transactional_settings
from penstock.sdk.send.transactional import TransactionalProducer
from penstock.sdk.send.watching import Watch

log = logging.getLogger(__name__)

_PATIENCE_S = 8.0
"""For each call of the library."""
_STUCK_S = 12.0
"""A call that has not come back by then never does: librdkafka's search for a group's coordinator can be lost with its
connection, and the offsets that wait for it have no end."""
_LOOK_S = 0.5
_TIMEOUT_MS = 20_000
"""A transaction that a killed process has left open is ended by the broker after that; until then the next owner of its
partitions waits."""


@dataclass(eq=False, slots=True)
class _Attempt:
    """One transaction, carried out in a thread of its own because the library may never come back."""

    producer: TransactionalProducer
    moved_s: float
    is_given_up: bool = False
    error: TransactionError | None = None


class KafkaTransactor:
    """One transactional producer at a time, under a name of its own: the group's generation keeps out what is not ours
    any more. A producer that has failed for good is replaced.

    When `commit` has failed, what became of the transaction is final: the new producer ends what the old one has left
    open, and the old one can do no more.
    """

    def __init__(self, access: Access, group: str, watch: Watch, clock: Clock | None = None) -> None:
        name = f"penstock-{group}-{uuid.uuid4().hex}"
        settings = transactional_settings(Sending(delivery="exactly-once"), name)
        timeouts = {"transaction.timeout.ms": _TIMEOUT_MS, "message.timeout.ms": _TIMEOUT_MS}
        self._settings = access.settings_for(settings | timeouts)
        self._watch = watch
        self._clock = clock or SystemClock()
        self._producer: TransactionalProducer | None = None
        self._closed = threading.Event()

    def commit(self, outgoing: Sequence[Outgoing], positions: Mapping[TopicPartition, int], group: object) -> None:
        if self._producer is None:
            self._producer = self._new_producer()
        attempt = _Attempt(self._producer, self._now_s())
        work = threading.Thread(
            target=self._try, args=(attempt, outgoing, positions, group), name="penstock-transaction", daemon=True
        )
        work.start()
        while work.is_alive() and not attempt.is_given_up:
            work.join(_LOOK_S)
            attempt.is_given_up = work.is_alive() and self._now_s() - attempt.moved_s > _STUCK_S
        if attempt.is_given_up:
            log.warning("a transaction is stuck, its producer is replaced")
        if attempt.is_given_up or attempt.producer.is_spent:
            self._producer = None
            self._producer = self._new_producer()
        if attempt.is_given_up:
            raise TransactionError("the transaction could not be committed: the client library does not come back")
        if attempt.error is not None:
            raise attempt.error

    def close(self) -> None:
        self._closed.set()
        if self._producer is not None:
            self._producer.close()

    def _try(
        self, attempt: _Attempt, outgoing: Sequence[Outgoing], positions: Mapping[TopicPartition, int], group: object
    ) -> None:
        producer, futures = attempt.producer, []
        try:
            producer.begin()
            for each in outgoing:
                futures.append(self._watch.send(each, producer.send_soon))
                attempt.moved_s = self._now_s()
            producer.send_offsets(positions, group)
            attempt.moved_s = self._now_s()
            if attempt.is_given_up:
                return
            producer.commit()
        except TransactionError as error:
            attempt.moved_s, attempt.error = self._now_s(), error
            producer.abort()
            for index, future in enumerate(futures):
                refused = future.exception(timeout=0)
                if isinstance(refused, SendError) and not refused.is_retriable:
                    attempt.error = RefusedError(index, str(refused))
                    return

    def _new_producer(self) -> TransactionalProducer:
        """Until there is one: nothing may go on before what was open is ended."""
        while True:
            try:
                return TransactionalProducer(self._settings, _PATIENCE_S, self._clock)
            except TransactionError as error:
                if self._closed.is_set():
                    raise
                log.warning("transactions cannot begin yet", extra=fields(error=error))

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000
