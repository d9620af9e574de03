"""Listening sockets: each accepts connections within limits, and closes those that are idle or stalled."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Sequence
from functools import partial

from penstock.config.address import Address
from penstock.config.broker import Limits
from penstock.config.listeners import ListenerSettings
from penstock.config.security import SecuritySettings
from penstock.errors import ConfigError
from penstock.logs import fields
from penstock.net.buffers import Allowance
from penstock.net.caller import Caller
from penstock.net.connection import Connection, Handler
from penstock.net.handshakes import Begin, Handshakes
from penstock.net.login import Login, Logins
from penstock.net.round_robin import RoundRobin
from penstock.net.tls import TlsContexts, TlsTransport
from penstock.net.transport import SocketTransport
from penstock.security.connection_rates import ConnectionRates
from penstock.security.principal import Principal

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_ACCEPTS_A_TURN = 64
_LOOK_AFTER_S = 2.0
_STALL_S = 10.0
_STALL_WHEN_SHORT_S = 2.0
"""How long a request may stand still: others wait for the memory that it holds."""
_DRAIN_S = 2.0
_IPV4_MAPPED = "::ffff:"
"""How a socket for IPv6 spells addresses of IPv4."""


class Listener:
    """One listening socket and its connections."""

    def __init__(
        self,
        settings: ListenerSettings,
        limits: Limits,
        allowance: Allowance,
        round_robin: RoundRobin,
        handler: Handler,
        tls: TlsContexts | None,
        logins: Logins | None,
        security: SecuritySettings,
        rates: ConnectionRates | None = None,
    ) -> None:
        """Without `rates` connections are taken as fast as they come."""
        self.settings = settings
        self._rates = None if settings.is_inter_broker else rates
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
        """Accepted, but too soon after others from the same address: served when their time has come."""
        self._pause: asyncio.TimerHandle | None = None
        self._handshakes = Handshakes(limits.tls_handshakes, limits.tls_handshakes_per_host)
        self._unsecured: dict[socket.socket, Begin] = {}
        """Accepted, and in line for a TLS handshake."""
        self._in_handshake: set[Caller] = set()
        self._security = security
        self._logins = logins if settings.protocol.has_sasl else None
        self._tls = tls if settings.protocol.has_tls else None
        self._limits = limits
        self._handler = handler
        self._allowance = allowance
        self._round_robin = round_robin
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

    @property
    def muted(self) -> int:
        """Connections that are throttled."""
        return sum(connection.is_muted for connection in self._connections)

    @property
    def held(self) -> int:
        """Connections that are accepted and not served yet."""
        return len(self._held) + len(self._unsecured)

    def use(self, handler: Handler) -> None:
        """Has requests handled by another one, and lets go of connections that are throttled: quotas have changed."""
        self._handler = handler
        for connection in list(self._connections):
            connection.use(handler)
            connection.unmute()

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
        if self._pause is not None:
            self._pause.cancel()
        for sock, timer in self._held.items():
            timer.cancel()
            sock.close()
        self._held.clear()
        for sock in self._unsecured:
            sock.close()
        self._unsecured.clear()
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
            self._take(sock, _host_of(peer))
            if self._rates is not None and (pause_ms := self._rates.pause_ms(self._now_ms())):
                self._stop_accepting(pause_ms)
                return

    def _stop_accepting(self, pause_ms: float) -> None:
        """Others wait in the backlog."""
        assert self._sock is not None
        self._loop.remove_reader(self._sock.fileno())
        self._pause = self._loop.call_later(pause_ms / 1000, self._accept_again)

    def _accept_again(self) -> None:
        assert self._sock is not None
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._on_acceptable)

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _take(self, sock: socket.socket, host: str) -> None:
        if (
            len(self._connections) + self.held >= self._limits.connections
            or self._by_host[host] >= self._limits.connections_per_host
            or (self._logins is not None and not self._logins.has_room(host))
        ):
            self.refused += 1
            logger.warning(
                "connection refused: too many",
                extra=fields(host=host, listener=self.settings.name, connections=self.connections),
            )
            sock.close()
            return
        delay_ms = 0.0 if self._rates is None else self._rates.delay_ms(host, self._now_ms())
        if delay_ms is None:
            self.refused += 1
            logger.warning("connection refused: the quota of its address is used up", extra=fields(host=host))
            sock.close()
            return
        self.accepted += 1
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._by_host[host] += 1
        if delay_ms:
            self._held[sock] = self._loop.call_later(delay_ms / 1000, self._secure, sock, host)
        else:
            self._secure(sock, host)

    def _secure(self, sock: socket.socket, host: str) -> None:
        """Serves it when its TLS handshake can begin, if there is one."""
        self._held.pop(sock, None)
        if self._tls is None:
            self._serve(sock, host)
            return
        self._unsecured[sock] = begin = partial(self._serve, sock, host)
        self._handshakes.begin(host, begin)

    def _serve(self, sock: socket.socket, host: str) -> None:
        if self._unsecured.pop(sock, None) is None and self._tls is not None:
            return  # closed while it was in line
        must_prove = self._logins is not None or bool(self._security.broker_principals)
        caller = Caller(host, self.settings.name, is_inter_broker=self.settings.is_inter_broker and not must_prove)
        connection = Connection(
            self._loop,
            SocketTransport(sock)
            if self._tls is None
            else TlsTransport(sock, self._tls, self.settings.name, partial(self._name, caller)),
            caller,
            self._handler,
            self._allowance,
            self._limits.frame_bytes,
            self._limits.unacknowledged_requests,
            self._round_robin,
            self._loop.time,
            self._forget,
        )
        self._connections.add(connection)
        if self._tls is not None:
            self._in_handshake.add(caller)
        if self._logins is not None:
            self._logins.take_place(host)
            Login(self._logins, self.settings, connection, caller, self._handler)

    def _name(self, caller: Caller, certificate: str | None) -> None:
        """The handshake is over: names the caller after its certificate, unless it logs in."""
        self._end_handshake(caller)
        if certificate is None or self._logins is not None:
            return
        user = self._security.principal_mapping_rules.user_of(certificate)
        if user is None:
            raise OSError("no rule of security.principal_mapping_rules is for the certificate")
        caller.principal = Principal.user(user)
        if self._security.broker_principals:
            caller.is_inter_broker = self.settings.is_inter_broker and self._security.counts_as_broker(caller.principal)

    def _end_handshake(self, caller: Caller) -> None:
        if caller in self._in_handshake:
            self._in_handshake.remove(caller)
            # Not now: the handshake of another would begin inside of this one.
            self._loop.call_soon(self._handshakes.end, caller.host)

    def _forget(self, connection: Connection) -> None:
        self._end_handshake(connection.caller)
        if connection.login is not None:
            connection.login.close()
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


def _host_of(peer: tuple[str, int]) -> str:
    """A client that comes through IPv4 has one address, on a socket for IPv6 too: ACLs, quotas and limits are by it."""
    return peer[0].removeprefix(_IPV4_MAPPED) if "." in peer[0] else peer[0]


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
        logins: Logins | None = None,
        security: SecuritySettings | None = None,
        rates: ConnectionRates | None = None,
    ) -> None:
        """`tls` is needed if a listener encrypts, `logins` if one has SASL. Without `rates` connections are taken as
        fast as they come.
        """
        self._allowance = Allowance(limits.in_flight_bytes)
        self.logins = logins
        round_robin = RoundRobin(asyncio.get_running_loop())
        known = security or SecuritySettings()
        self._listeners = [
            Listener(each, limits, self._allowance, round_robin, handler, tls, logins, known, rates)
            for each in settings
        ]

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
    def muted(self) -> int:
        return sum(listener.muted for listener in self._listeners)

    @property
    def held(self) -> int:
        return sum(listener.held for listener in self._listeners)

    def use(self, handler: Handler) -> None:
        """Has requests of clients handled by another one; those of brokers stay with theirs."""
        for listener in self._listeners:
            if not listener.settings.is_inter_broker:
                listener.use(handler)

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
