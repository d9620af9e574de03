"""Listening sockets: each accepts connections within limits, and closes those that are idle or stalled."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Sequence

from penstock.config.address import Address
from penstock.config.broker import Limits
from penstock.config.listeners import ListenerSettings
from penstock.errors import ConfigError
from penstock.logs import fields
from penstock.net.buffers import Allowance
from penstock.net.caller import Caller
from penstock.net.connection import Connection, Handler
from penstock.net.tls import TlsContexts, TlsTransport
from penstock.net.transport import SocketTransport

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_ACCEPTS_A_TURN = 64
_LOOK_AFTER_S = 2.0
_STALL_S = 10.0
_STALL_WHEN_SHORT_S = 2.0
"""How long a request may stand still: others wait for the memory that it holds."""
_DRAIN_S = 2.0


class Listener:
    """One listening socket and its connections."""

    def __init__(
        self,
        settings: ListenerSettings,
        limits: Limits,
        allowance: Allowance,
        handler: Handler,
        tls: TlsContexts | None,
    ) -> None:
        self.settings = settings
        self._tls = tls if settings.protocol.has_tls else None
        self._limits = limits
        self._handler = handler
        self._allowance = allowance
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._by_host: Counter[str] = Counter()
        self._keeper: asyncio.TimerHandle | None = None
        self.refused = 0
        self.accepted = 0

    @property
    def connections(self) -> int:
        return len(self._connections)

    def bind(self) -> Address:
        """Takes the address, so that a port in use is known before anything else is done."""
        address = self.settings.address
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            raise ConfigError(f"broker.listen = '{self.settings}' cannot be listened on: {error}") from error
        self._sock = sock
        host, port = sock.getsockname()[:2]
        return Address(host, port)

    def start(self) -> None:
        """Begins to accept."""
        assert self._sock is not None
        self._sock.listen(_BACKLOG)
        self._loop.add_reader(self._sock.fileno(), self._on_acceptable)
        self._keeper = self._loop.call_later(_LOOK_AFTER_S, self._look_after)

    async def close(self) -> None:
        """Stops accepting, lets requests that are being handled finish for a moment, then closes everything."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
        busy = [connection.when_idle() for connection in self._connections if not connection.is_idle]
        if busy:
            await asyncio.wait(busy, timeout=_DRAIN_S)
        for connection in list(self._connections):
            connection.close()

    def _on_acceptable(self) -> None:
        assert self._sock is not None
        for _ in range(_ACCEPTS_A_TURN):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors or memory: what is connected goes on, the rest waits in the backlog.
                logger.error("cannot accept", extra=fields(error=str(error)))
                return
            self._take(sock, peer[0])

    def _take(self, sock: socket.socket, host: str) -> None:
        if (
            len(self._connections) >= self._limits.connections
            or self._by_host[host] >= self._limits.connections_per_host
        ):
            self.refused += 1
            logger.warning(
                "connection refused: too many",
                extra=fields(host=host, listener=self.settings.name, connections=self.connections),
            )
            sock.close()
            return
        self.accepted += 1
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._by_host[host] += 1
        caller = Caller(host, self.settings.name, is_inter_broker=self.settings.is_inter_broker)
        self._connections.add(
            Connection(
                self._loop,
                SocketTransport(sock) if self._tls is None else TlsTransport(sock, self._tls.server),
                caller,
                self._handler,
                self._allowance,
                self._limits.frame_bytes,
                self._loop.time,
                self._forget,
            )
        )

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._by_host[connection.host] -= 1
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]

    def _look_after(self) -> None:
        now = self._loop.time()
        idle_before = now - self._limits.idle_connection_ms / 1000
        stalled_before = now - (_STALL_WHEN_SHORT_S if self._allowance.is_short else _STALL_S)
        for connection in list(self._connections):
            connection.look_after(idle_before, stalled_before)
        self._keeper = self._loop.call_later(_LOOK_AFTER_S, self._look_after)


class Listeners:
    """All listeners of a broker.

    Each has its own limit of connections: clients cannot take the places of the other brokers. The memory for large
    requests is one for all.
    """

    def __init__(
        self,
        settings: Sequence[ListenerSettings],
        limits: Limits,
        handler: Handler,
        tls: TlsContexts | None = None,
    ) -> None:
        """`tls` is needed if a listener encrypts."""
        self._allowance = Allowance(limits.in_flight_bytes)
        self._listeners = [Listener(each, limits, self._allowance, handler, tls) for each in settings]

    @property
    def connections(self) -> int:
        return sum(listener.connections for listener in self._listeners)

    @property
    def accepted(self) -> int:
        return sum(listener.accepted for listener in self._listeners)

    @property
    def refused(self) -> int:
        return sum(listener.refused for listener in self._listeners)

    @property
    def request_bytes_held(self) -> int:
        return self._allowance.used

    def bind(self) -> list[tuple[ListenerSettings, Address]]:
        """Takes all addresses; which each listener has got."""
        return [(listener.settings, listener.bind()) for listener in self._listeners]

    def start(self) -> None:
        """Begins to accept."""
        for listener in self._listeners:
            listener.start()

    async def close(self) -> None:
        await asyncio.gather(*(listener.close() for listener in self._listeners))
