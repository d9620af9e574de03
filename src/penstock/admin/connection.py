"""The connection that all operations of one `Cluster` share: the client library's admin client, deadlines, errors."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicMetadata

from penstock.admin.errors import NETWORK_EXCEPTION, REQUEST_TIMED_OUT, AdminError, UnreachableError, admin_error
from penstock.admin.results import Results
from penstock.config.address import Address, parse_address
from penstock.errors import Code
from penstock.sdk.kafka.connection import CREATES_NOTHING, ConnectionSettings

K = TypeVar("K")
T = TypeVar("T")

_LEAST_S = 0.1
"""The library refuses a timeout of nothing."""
_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION)
"""Nothing has this name, or nothing could."""
_GRACE_S = 1.0
"""The library ends each request itself; this is for one that it forgets."""


class Deadline:
    """The time by which a call must have returned."""

    def __init__(self, timeout_s: float) -> None:
        self._at_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        return max(_LEAST_S, self._at_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._at_s


class AdminConnection:
    """Connects when it is first used. Any thread may use it."""

    def __init__(self, settings: ConnectionSettings, timeout_s: float) -> None:
        self.settings = settings
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._client: AdminClient | None = None

    @property
    def client(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                try:
                    self._client = AdminClient({**self.settings.settings_for(), **CREATES_NOTHING})
                except KafkaException as error:
                    raise admin_error(error) from None
            return self._client

    def deadline(self) -> Deadline:
        return Deadline(self.timeout_s)

    def require_listener(self) -> None:
        """Fails at once, with the reason, if nothing listens at any bootstrap address.

        The client library does not report a refused connection: it retries until the call times out.
        """
        self.listener()

    def listener(self) -> Address:
        """The first bootstrap address at which something listens."""
        return next(self.listeners())

    def listeners(self) -> Iterator[Address]:
        """The bootstrap addresses at which something listens; UnreachableError if there is none."""
        reasons = []
        servers = self.settings.bootstrap.split(",")
        for server in servers:
            address = _address(server)
            try:
                socket.create_connection(address, timeout=self.timeout_s).close()
            except OSError as error:
                reasons.append(f"{server.strip()}: {error.strerror or error}")
            else:
                yield address
        if len(reasons) == len(servers):
            raise UnreachableError(NETWORK_EXCEPTION, f"no broker answers ({'; '.join(reasons)})")

    def metadata(self, deadline: Deadline) -> ClusterMetadata:
        """All brokers and topics: much, in a large cluster. For one topic there is `topic_metadata`, for brokers
        `cluster_nodes`.
        """
        try:
            return self.client.list_topics(timeout=deadline.left_s)
        except KafkaException as error:
            raise self._silent(error) from None

    def topic_metadata(self, name: str, deadline: Deadline) -> tuple[ClusterMetadata, TopicMetadata | None]:
        """All brokers, and one topic; None if there is none of this name."""
        try:
            cluster = self.client.list_topics(name, timeout=deadline.left_s)
        except (ValueError, RuntimeError):
            # The library's words for a name that it cannot send.
            return ClusterMetadata(), None
        except KafkaException as error:
            raise self._silent(error) from None
        found = cluster.topics.get(name)
        if found is not None and found.error is not None and found.error.code() in _NO_TOPIC:
            return cluster, None
        return cluster, found

    def _silent(self, error: KafkaException) -> UnreachableError:
        reason = admin_error(error)
        return UnreachableError(reason.code, f"no broker answers at {self.settings.bootstrap}: {reason.message}")

    def result(self, future: Future[T], deadline: Deadline) -> T:
        """The answer to one request, or its AdminError."""
        try:
            return future.result(deadline.left_s + _GRACE_S)
        except KafkaException as error:
            raise admin_error(error) from None
        except TimeoutError:
            raise UnreachableError(REQUEST_TIMED_OUT, f"no answer within {self.timeout_s:g} s") from None

    def results(self, futures: Mapping[K, Future[T]], deadline: Deadline) -> Results[K, T]:
        """The answers to requests that were sent together."""
        values: dict[K, T] = {}
        errors: dict[K, AdminError] = {}
        for key, future in futures.items():
            try:
                values[key] = self.result(future, deadline)
            except AdminError as error:
                errors[key] = error
        return Results(values, errors)

    def send(self, request: Callable[[], T]) -> T:
        """Hands a request to the library, which refuses some values itself before it sends anything."""
        try:
            return request()
        except KafkaException as error:
            raise admin_error(error) from None
        except (ValueError, TypeError) as error:
            raise AdminError(Code.INVALID_REQUEST.name, str(error)) from None


def _address(server: str) -> Address:
    # librdkafka's settings may name a protocol before the address.
    return parse_address(server.strip().rpartition("://")[2])


def ignore(error: object) -> None:
    """The library retries connection trouble; what matters fails the call that needed an answer."""
