"""A store that another process serves: a `QueueStore` whose calls go over TCP."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.brokerless.store import (
    FencedClaimError,
    Granted,
    GroupClaims,
    GroupMember,
    GroupOffsets,
    IdFence,
    ReadPage,
    SendBatch,
    StoreAwayError,
    StoreRefusedError,
)
from penstock.brokerless.tcp import values
from penstock.brokerless.tcp.frames import Blobs, Frame, FrameError, FrameTooLargeError, encode, receive, send
from penstock.brokerless.tcp.served_calls import MAX_WAIT_S, query_args
from penstock.brokerless.tcp.server import GREETING
from penstock.clock import Clock, SystemClock
from penstock.ids import TopicPartition
from penstock.sdk.backend import AS_BACKEND_SAYS, Topics, TopicShape
from penstock.sdk.errors import ClosedError, InvalidInputError, TopicError
from penstock.sdk.timers import TimerQuery, WaitingMessage

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""How long a call waits for its answer."""
CONNECT_S = 5.0
MAX_IDLE = 8
"""How many connections are kept for the next calls."""
_FIRST_BACK_OFF_MS = 50
_LAST_BACK_OFF_MS = 2_000


class RemoteTopics(Topics):
    """The topics of a served store. Remembers what it created: a server that starts again has no topics."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self.created: dict[str, tuple[int, int, Mapping[str, str]]] = {}

    def shape(self, topic: str) -> TopicShape | None:
        try:
            found = self._store.call("shape", topic).header["result"]
        except (StoreAwayError, StoreRefusedError) as error:
            raise TopicError(f"could not look up topic {topic}: {error}") from None
        return None if found is None else TopicShape(*found)

    def create(
        self,
        topic: str,
        partitions: int = AS_BACKEND_SAYS,
        replicas: int = AS_BACKEND_SAYS,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        settings = dict(config or {})
        try:
            is_new = bool(self._store.call("create", topic, partitions, replicas, settings).header["result"])
        except (StoreAwayError, StoreRefusedError) as error:
            raise TopicError(f"could not create topic {topic}: {error}") from None
        self.created.setdefault(topic, (partitions, replicas, settings))
        return is_new


class RemoteStore:
    """A `QueueStore` at an address. Thread-safe: a call under way has a connection for itself."""

    def __init__(self, host: str, port: int, clock: Clock | None = None) -> None:
        self.address = f"tcp://{host}:{port}"
        self._host, self._port = host, port
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._server_id = ""
        """Of the server that the newest connection has met."""
        self._back_off_ms = _FIRST_BACK_OFF_MS
        self._not_before_ms = float("-inf")
        self._closing = threading.Event()
        self.topics = RemoteTopics(self)

    @property
    def incarnation(self) -> str:
        return self._server_id

    def settings(self, topic: str) -> Mapping[str, str]:
        found: dict[str, str] = self.call("settings", topic).header["result"]
        return found

    # Messages

    def append(self, batch: SendBatch) -> Sequence[int | None]:
        blobs = Blobs()
        offsets: list[int | None] = self.call("append", values.put_batch(batch, blobs), blobs=blobs).header["result"]
        return offsets

    def is_writable(self, topic_partition: TopicPartition) -> bool:
        return True

    def read(self, topic_partition: TopicPartition, offset: int, max_count: int) -> ReadPage:
        frame = self.call("read", list(topic_partition), offset, max_count)
        return values.page_of(frame.header["result"], topic_partition, frame)

    def bounds(self, topic_partition: TopicPartition) -> tuple[int, int]:
        first, end = self.call("bounds", list(topic_partition)).header["result"]
        return first, end

    def wait(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> None:
        if not positions:
            self._closing.wait(timeout_s)
            return
        asked_s = min(timeout_s, MAX_WAIT_S)
        self.call("wait", values.by_tp(positions), int(asked_s * 1000), timeout_s=TIMEOUT_S + asked_s)

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        frame = self.call("read_timers", query_args(query))
        return values.timers_of(frame.header["result"], query.topic, frame)

    # Groups

    def heartbeat(self, group: str, member: GroupMember, session_ms: int) -> GroupClaims:
        frame = self.call("heartbeat", group, member.name, sorted(member.topics), session_ms)
        return values.state_of(frame.header["result"])

    def claim(self, group: str, member: str, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, Granted]:
        return values.grants_of(self.call("claim", group, member, [list(tp) for tp in wanted]).header["result"])

    def release(self, group: str, member: str, epochs: Mapping[TopicPartition, int]) -> None:
        self.call("release", group, member, values.by_tp(epochs))

    def leave(self, group: str, member: str) -> None:
        self.call("leave", group, member)

    def committed(self, group: str, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return values.numbers_by_tp(self.call("committed", group, [list(tp) for tp in asked]).header["result"])

    def commit(self, offsets: GroupOffsets) -> None:
        self.call("commit", values.put_offsets(offsets))

    def commit_initial(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        self.call("commit_initial", group, values.by_tp(positions))

    # Transactions

    def fence(self, transactional_id: str) -> IdFence:
        fence = values.fence_of(self.call("fence", transactional_id).header["result"])
        assert fence is not None
        return fence

    def commit_transaction(
        self, batches: Sequence[SendBatch], offsets: GroupOffsets | None, fence: IdFence | None
    ) -> Sequence[Sequence[int | None]]:
        blobs = Blobs()
        put = [values.put_batch(batch, blobs) for batch in batches]
        frame = self.call("commit_transaction", put, values.put_offsets(offsets), values.put_fence(fence), blobs=blobs)
        written: list[list[int | None]] = frame.header["result"]
        return written

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            idle, self._idle = self._idle, []
            for connection in self._busy:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for connection in idle:
            connection.close()

    # Calls

    def call(self, name: str, *args: Any, blobs: Blobs | None = None, timeout_s: float = TIMEOUT_S) -> Frame:
        """Make a call, and return what was answered. Raises what the store raised there, and `StoreAwayError`."""
        try:
            request = encode({"call": name, "args": args}, blobs or Blobs())
        except FrameTooLargeError as error:
            raise StoreRefusedError(f"{error}; nothing was sent") from None
        connection = self._taken()
        try:
            send(connection, request, timeout_s)
            frame = receive(connection, timeout_s, timeout_s)
            if frame is None:
                raise FrameError("the connection was closed")
        except (OSError, FrameError) as error:
            self._drop(connection)
            raise StoreAwayError(f"{self.address}: {error or 'no answer'}", is_outcome_unknown=True) from None
        self._give_back(connection)
        if "error" in frame.header:
            raise _raised(frame.header)
        return frame

    def _taken(self) -> socket.socket:
        if self._closing.is_set():
            raise ClosedError(f"{self.address} is closed")
        with self._lock:
            if self._idle:
                connection = self._idle.pop()
                self._busy.add(connection)
                return connection
            if self._clock.monotonic_ms() < self._not_before_ms:
                raise StoreAwayError(f"{self.address} does not answer; trying again soon")
        try:
            connection = self._connected()
        except (OSError, FrameError) as error:
            with self._lock:
                self._not_before_ms = self._clock.monotonic_ms() + self._back_off_ms
                self._back_off_ms = min(self._back_off_ms * 2, _LAST_BACK_OFF_MS)
            raise StoreAwayError(f"{self.address}: {error}") from None
        with self._lock:
            self._back_off_ms = _FIRST_BACK_OFF_MS
            self._busy.add(connection)
        return connection

    def _connected(self) -> socket.socket:
        connection = socket.create_connection((self._host, self._port), CONNECT_S)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send(connection, encode({"hello": GREETING}, Blobs()), CONNECT_S)
            frame = receive(connection, CONNECT_S, CONNECT_S)
            if frame is None or frame.header.get("hello") != GREETING:
                raise FrameError("the server at this address does not serve a Penstock queue")
            self._meet(connection, str(frame.header.get("id")))
        except BaseException:
            connection.close()
            raise
        return connection

    def _meet(self, connection: socket.socket, server_id: str) -> None:
        """If the server is another one than before, it has nothing: create the topics there that this client needs."""
        with self._lock:
            is_new = self._server_id not in ("", server_id)
            self._server_id = server_id
            stale, self._idle = (self._idle, []) if is_new else ([], self._idle)
        for each in stale:
            each.close()
        if not is_new:
            return
        log.warning("%s was started again, and its messages are gone", self.address)
        for topic, (partitions, replicas, config) in list(self.topics.created.items()):
            request = {"call": "create", "args": [topic, partitions, replicas, config]}
            send(connection, encode(request, Blobs()), TIMEOUT_S)
            receive(connection, TIMEOUT_S, TIMEOUT_S)

    def _give_back(self, connection: socket.socket) -> None:
        with self._lock:
            self._busy.discard(connection)
            if len(self._idle) < MAX_IDLE and not self._closing.is_set():
                self._idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()


def _raised(header: Mapping[str, Any]) -> Exception:
    said = str(header.get("text"))
    match header["error"]:
        case "refused":
            place = header.get("place")
            return StoreRefusedError(said, place=None if place is None else (place[0], place[1]))
        case "fenced":
            return FencedClaimError(said)
        case "topic":
            return TopicError(said)
        case "invalid":
            return InvalidInputError(said)
    return StoreAwayError(said, is_outcome_unknown=bool(header.get("unknown")))
