"""What can go wrong in an admin operation.

An `AdminError` is both a value (the result for one thing of many) and an exception (the whole call failed, or the
caller requested a single result, and that is an error). Its code is Kafka's own name of the error, also where the
client library or this package detected it.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from penstock.errors import Code, PenstockError

NETWORK_EXCEPTION = "NETWORK_EXCEPTION"
REQUEST_TIMED_OUT = "REQUEST_TIMED_OUT"
RESOURCE_NOT_FOUND = "RESOURCE_NOT_FOUND"
"""Kafka's name for a thing that Kafka has no name for: a timer, a dead letter."""

# The client library has codes of its own for what it notices itself; Kafka's Java client uses these names.
_LIBRARY_CODES = {
    KafkaError._TIMED_OUT: REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE: REQUEST_TIMED_OUT,
    KafkaError._MSG_TIMED_OUT: REQUEST_TIMED_OUT,
    KafkaError._WAIT_COORD: "COORDINATOR_NOT_AVAILABLE",
    KafkaError._TRANSPORT: NETWORK_EXCEPTION,
    KafkaError._ALL_BROKERS_DOWN: NETWORK_EXCEPTION,
    KafkaError._RESOLVE: NETWORK_EXCEPTION,
    KafkaError._AUTHENTICATION: "SASL_AUTHENTICATION_FAILED",
    KafkaError._UNKNOWN_TOPIC: Code.UNKNOWN_TOPIC_OR_PARTITION.name,
    KafkaError._UNKNOWN_PARTITION: Code.UNKNOWN_TOPIC_OR_PARTITION.name,
    KafkaError._NOENT: Code.LEADER_NOT_AVAILABLE.name,
    KafkaError._INVALID_ARG: Code.INVALID_REQUEST.name,
}


class AdminError(PenstockError):
    """An operation failed, for one thing or as a whole."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        """Kafka's name of the error, such as UNKNOWN_TOPIC_OR_PARTITION."""
        self.message = message
        """What happened, in words for people."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {self.message!r})"


class UnreachableError(AdminError):
    """No broker answered in time: it is not known whether anything was done."""


def admin_error(error: KafkaException | KafkaError) -> AdminError:
    """The client library's error as one of ours."""
    inner: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    code = code_name(inner)
    kind = UnreachableError if code in (NETWORK_EXCEPTION, REQUEST_TIMED_OUT) else AdminError
    return kind(code, " ".join(inner.str().split()) or code)


def code_name(error: KafkaError) -> str:
    """Kafka's name of an error."""
    number = error.code()
    if number in _LIBRARY_CODES:
        return _LIBRARY_CODES[number]
    try:
        return Code(number).name
    except ValueError:
        return str(error.name()).lstrip("_")
