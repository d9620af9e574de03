"""One librdkafka producer with a transactional id: one transaction at a time.

librdkafka has three kinds of errors. *Retriable*: repeat the call. *Abortable*: abort the transaction, keep the
producer. *Fatal*: the producer is spent, and its owner replaces it; starting the new one aborts the open transaction,
or the broker does after the transaction timeout.
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
from penstock.sdk.kafka.librdkafka import error_of, is_fenced, reason_of, send_error
from penstock.sdk.kafka.producer import produce, receipt_of
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.buffered_producer import promise, settle

_CALL_S = 5.0
"""How long one librdkafka call may take before it is repeated."""
_ROOM_S = 0.1


class KafkaTransactionalProducer:
    """Begins, sends, commits or aborts. One thread at a time."""

    def __init__(self, settings: dict[str, Any], timeout_s: float, clock: Clock) -> None:
        self.transactional_id: str = settings["transactional.id"]
        self.has_failed = False
        self._timeout_s = timeout_s
        self._clock = clock
        self._producer = Producer(settings)
        self._results: list[tuple[Future[Receipt], list[Receipt | SendError]]] = []
        self._call("start a transactional producer", lambda timeout_s: self._producer.init_transactions(timeout_s))

    def begin(self) -> None:
        """Begin a transaction; sends nothing."""
        self._results = []
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._failure("begin the transaction", error_of(error)) from None

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        """The future holds the receipt once the transaction has committed."""
        future = promise()
        result: list[Receipt | SendError] = []
        self._results.append((future, result))

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                result.append(receipt_of(outgoing, message, self._clock.now_ms()))
            else:
                result.append(send_error(outgoing.topic, error))

        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                produce(self._producer, outgoing, report)
                self._producer.poll(0)
                return future
            except BufferError:
                if time.monotonic() > deadline:
                    result.append(BufferFullError(f"no room for a message to {outgoing.topic}", is_retriable=True))
                    return future
                self._producer.poll(_ROOM_S)
            except KafkaException as error:
                result.append(send_error(outgoing.topic, error_of(error)))
                return future

    def send_offsets(self, positions: Mapping[TopicPartition, int], group_metadata: Any) -> None:
        """Commit the group's offsets with the messages, or not at all."""
        topic_partitions = [Position(tp.topic, tp.partition, offset) for tp, offset in positions.items()]
        self._call(
            "add offsets to the transaction",
            lambda timeout_s: self._producer.send_offsets_to_transaction(topic_partitions, group_metadata, timeout_s),
        )

    def commit(self) -> None:
        """Commit all or nothing. Raises `TransactionError`; with `is_unknown` the outcome is not known."""
        if refused := [error for _, result in self._results for error in result if isinstance(error, SendError)]:
            raise TransactionError(f"could not commit the transaction: {refused[0]}")
        self._call(
            "commit the transaction",
            lambda timeout_s: self._producer.commit_transaction(timeout_s),
            may_have_worked=True,
        )
        for future, result in self._results:
            settle(future, result[0] if result else SendError("librdkafka did not report the message"))
        self._results = []

    def abort(self) -> None:
        """Abort; a producer that cannot do that is spent."""
        try:
            if not self.has_failed:
                self._call("abort the transaction", lambda timeout_s: self._producer.abort_transaction(timeout_s))
        except TransactionError:
            self.has_failed = True
        finally:
            for future, result in self._results:
                failure = result[0] if result and isinstance(result[0], SendError) else None
                settle(future, failure or SendError("the transaction was aborted", is_retriable=True))
            self._results = []

    def close(self) -> None:
        """Close the connections."""
        self._producer.purge()
        with suppress(KafkaException):
            # Raised by a producer that is known to have failed for good.
            self._producer.poll(0)

    def _call(self, what: str, call: Callable[[float], object], *, may_have_worked: bool = False) -> None:
        deadline = time.monotonic() + self._timeout_s
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
            self.has_failed = True
            return FencedError(f"could not {what}: another client uses the transactional id {self.transactional_id}")
        if error.txn_requires_abort():
            return TransactionError(f"could not {what}: {reason_of(error)}")
        self.has_failed = True
        # An unanswered commit may have succeeded, and starting the next producer does not reveal it.
        is_unknown = may_have_worked and error.retriable()
        return TransactionError(f"could not {what}: {reason_of(error)}", is_unknown=is_unknown)
