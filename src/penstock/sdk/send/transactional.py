"""One librdkafka producer with a transactional id: one transaction at a time.

Errors are of three kinds, as librdkafka has them. *Retriable*: the same call again. *Abortable*: the transaction is
aborted, the producer stays. *Fatal*: the producer is spent, and whoever owns it makes a new one; what it has left open
is ended by that one's start, or by the broker after the transaction's time-out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Position

from penstock.clock import Clock
from penstock.ids import TopicPartition
from penstock.sdk.errors import BufferFullError, FencedError, SendError, TransactionError
from penstock.sdk.failures import error_of, is_fenced, reason_of, send_error
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.outboxes import promise, settle
from penstock.sdk.send.sender import produce, receipt_of

_CALL_S = 5.0
"""How long one call of the library may take before it is made again."""
_ROOM_S = 0.1


class TransactionalProducer:
    """Begins, sends, commits or aborts. One thread at a time."""

    def __init__(self, settings: dict[str, Any], patience_s: float, clock: Clock) -> None:
        self.transactional_id: str = settings["transactional.id"]
        self.is_spent = False
        self._patience_s = patience_s
        self._clock = clock
        self._producer = Producer(settings)
        self._results: list[tuple[Future[Receipt], list[Receipt | SendError]]] = []
        self._call("be started", lambda timeout_s: self._producer.init_transactions(timeout_s))

    def begin(self) -> None:
        """Begins; nothing is sent for that."""
        self._results = []
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._failure("be begun", error_of(error)) from None

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        """The future has the receipt once the transaction has committed."""
        future = promise()
        result: list[Receipt | SendError] = []
        self._results.append((future, result))

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                result.append(receipt_of(outgoing, message, self._clock.now_ms()))
            else:
                result.append(send_error(outgoing.topic, error))

        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                produce(self._producer, outgoing, report)
                self._producer.poll(0)
                return future
            except BufferError:
                if time.monotonic() > deadline:
                    result.append(BufferFullError(f"a message to {outgoing.topic} was not taken", is_retriable=True))
                    return future
                self._producer.poll(_ROOM_S)
            except KafkaException as error:
                result.append(send_error(outgoing.topic, error_of(error)))
                return future

    def send_offsets(self, positions: Mapping[TopicPartition, int], group_metadata: Any) -> None:
        """The group's positions are committed with the messages, or not at all."""
        places = [Position(place.topic, place.partition, offset) for place, offset in positions.items()]
        self._call(
            "take the group's offsets",
            lambda timeout_s: self._producer.send_offsets_to_transaction(places, group_metadata, timeout_s),
        )

    def commit(self) -> None:
        """All or nothing: `TransactionError` says that it was nothing, or that it cannot be known (`is_unknown`)."""
        if refused := [error for _, result in self._results for error in result if isinstance(error, SendError)]:
            raise TransactionError(f"the transaction was not committed: {refused[0]}")
        self._call("be committed", lambda timeout_s: self._producer.commit_transaction(timeout_s), may_have_worked=True)
        for future, result in self._results:
            settle(future, result[0] if result else SendError("the message was not reported"))
        self._results = []

    def abort(self) -> None:
        """Nothing of it is seen; a producer that cannot even do that is spent."""
        try:
            if not self.is_spent:
                self._call("be aborted", lambda timeout_s: self._producer.abort_transaction(timeout_s))
        except TransactionError:
            self.is_spent = True
        finally:
            for future, result in self._results:
                failure = result[0] if result and isinstance(result[0], SendError) else None
                settle(future, failure or SendError("the transaction was aborted", is_retriable=True))
            self._results = []

    def close(self) -> None:
        """Lets go of the connections."""
        self._producer.purge()
        with suppress(KafkaException):
            # Raised by a producer that has failed for good, which is known already.
            self._producer.poll(0)

    def _call(self, what: str, call: Callable[[float], object], *, may_have_worked: bool = False) -> None:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                call(min(_CALL_S, max(0.1, deadline - time.monotonic())))
                return
            except KafkaException as exception:
                error = error_of(exception)
                if error.retriable() and not error.txn_requires_abort() and time.monotonic() < deadline:
                    continue
                raise self._failure(what, error, may_have_worked=may_have_worked) from None

    def _failure(self, what: str, error: KafkaError, *, may_have_worked: bool = False) -> TransactionError:
        if is_fenced(error):
            self.is_spent = True
            return FencedError(f"the transaction could not {what}: another client uses the id {self.transactional_id}")
        if error.txn_requires_abort():
            return TransactionError(f"the transaction could not {what}: {reason_of(error)}")
        self.is_spent = True
        # A commit that is not answered may have been carried out, and the new producer's start does not tell.
        is_unknown = may_have_worked and error.retriable()
        return TransactionError(f"the transaction could not {what}: {reason_of(error)}", is_unknown=is_unknown)
