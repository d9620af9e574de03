"""Serves a store over TCP: one thread a connection, one call at a time on each.

A connection that sends anything but this protocol is closed with a line in the log; other connections are not affected.
"""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from penstock.brokerless.store import FencedClaimError, QueueStore, StoreAwayError, StoreRefusedError
from penstock.brokerless.tcp.frames import Blobs, Frame, FrameError, FrameTooLargeError, encode, receive, send
from penstock.brokerless.tcp.served_calls import CALLS
from penstock.brokerless.tcp.values import MALFORMED
from penstock.sdk.errors import ClientError, InvalidInputError, TopicError

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
GREETING = "penstock"
_HELLO_S = 5.0
"""How long a new connection may take to say what it is."""
_FRAME_S = 30.0
"""How long a frame may take, once it has begun."""
_BACKLOG = 128


class StoreServer:
    """Serves a store until it is closed."""

    def __init__(self, store: QueueStore, host: str, port: int) -> None:
        """Listen at once. Raises `InvalidInputError` if that is not possible."""
        self._store = store
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._is_closed = False
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise InvalidInputError(f"could not serve at {host}:{port}: {error.strerror or error}") from None
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="penstock-tcp-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections. The store stays open."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        # A thread that waits in `accept` is not woken by `close` alone.
        _end(self._listener)
        for connection in connections:
            _end(connection)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError as error:
                if self._is_closed:
                    return
                # Too many open files: connections that end make room.
                log.warning("could not accept a connection: %s", error)
                threading.Event().wait(0.1)
                continue
            with self._lock:
                is_room = not self._is_closed and len(self._connections) < MAX_CONNECTIONS
                if is_room:
                    self._connections.add(connection)
            if not is_room:
                log.warning("closed a connection from %s: there are %d already", peer[0], MAX_CONNECTIONS)
                connection.close()
                continue
            name = f"penstock-tcp-{peer[1]}"
            threading.Thread(target=self._serve, args=(connection, peer), name=name, daemon=True).start()

    def _serve(self, connection: socket.socket, peer: tuple[Any, ...]) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = receive(connection, _HELLO_S, _FRAME_S)
            if first is None:
                return
            if first.header.get("hello") != GREETING:
                raise FrameError("the first frame is no greeting")
            send(connection, encode({"hello": GREETING, "id": self._id}, Blobs()), _FRAME_S)
            while (frame := receive(connection, None, _FRAME_S)) is not None:
                send(connection, self._answer(frame), _FRAME_S)
        except FrameError as error:
            log.warning("closed the connection from %s:%s: %s", peer[0], peer[1], error)
        except OSError as error:
            if not self._is_closed:
                log.debug("the connection from %s:%s ended: %s", peer[0], peer[1], error)
        except Exception:
            log.exception("a bug in the SDK: closed the connection from %s:%s", peer[0], peer[1])
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, frame: Frame) -> bytes:
        name = frame.header.get("call")
        call = CALLS.get(name) if isinstance(name, str) else None
        if call is None:
            raise FrameError(f"there is no call {name!r}")
        blobs = Blobs()
        try:
            return encode({"result": call(self._store, frame, blobs)}, blobs)
        except ClientError as error:
            return encode(_error(error), Blobs())
        except FrameTooLargeError as error:
            return encode({"error": "refused", "text": str(error), "place": None}, Blobs())
        except MALFORMED as error:
            raise FrameError(f"the arguments of {name} cannot be read: {error!r}") from None


def _error(error: ClientError) -> Mapping[str, Any]:
    said = {"text": str(error)}
    if isinstance(error, StoreAwayError):
        return {"error": "away", "unknown": error.is_outcome_unknown, **said}
    if isinstance(error, StoreRefusedError):
        return {"error": "refused", "place": None if error.place is None else list(error.place), **said}
    if isinstance(error, FencedClaimError):
        return {"error": "fenced", **said}
    if isinstance(error, TopicError):
        return {"error": "topic", **said}
    if isinstance(error, InvalidInputError):
        return {"error": "invalid", **said}
    return {"error": "away", "unknown": True, **said}


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
