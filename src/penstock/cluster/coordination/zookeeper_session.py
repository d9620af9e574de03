"""A connection to ZooKeeper: requests that can be awaited, and one session after the other.

Rules:

- kazoo works in threads of its own. Whatever it has to say is posted to the event loop, which never waits for it;
  the fields of this class are touched on the event loop only.
- The connection is *usable* once ZooKeeper has answered a first write on it. A server has then applied all that was
  written before, so no session reads a state older than one that this process has read before.
- The session sends nothing while the connection is not usable, and tells waiting callers that it sent nothing.
- A request that was sent and not answered has an unknown outcome and is never sent again from here.

**How long the session certainly holds.** A server answers reads from what it has, even one that is cut off from its
leader, and it is the leader that ends sessions. So only answered writes count, which a majority has taken part in: the
keep-alive is a transaction that checks a node and changes nothing. The leader hears from the server that a session is
in use every half tick, and no session is shorter than two ticks; if that server dies before it has told, the
session is counted from up to a quarter of its time earlier. So it holds until three quarters of its time after the
last answered write was *sent*. A newly elected leader gives all sessions their full time again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from penstock.clock import Clock
from penstock.cluster.coordination.contract import Unsubscribe
from penstock.cluster.coordination.watchers import Registry
from penstock.errors import CoordinationError
from penstock.logs import fields

log = logging.getLogger(__name__)

WatchFired = Callable[[Any], None]
"""What kazoo calls, in a thread of its own, with an event that says no more than that it is time to read again."""

HELD_SHARE = 0.75
KEEP_ALIVES_PER_SESSION = 6
_RETRY_AFTER_S, _RETRY_AFTER_AT_MOST_S = 0.1, 1.0
_CLOSE_S = 2.0


class ZooKeeperTls(NamedTuple):
    """Files, read again for every connection. The server is checked by name, too."""

    ca_file: Path | None
    """None for the authorities that the system trusts."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password_file: Path | None = None

    def options(self) -> dict[str, Any]:
        """The options for the client library."""
        password = None if self.key_password_file is None else self.key_password_file.read_text("utf-8").strip("\r\n")
        return {
            "use_ssl": True,
            "verify_certs": True,
            "check_hostname": True,
            "ca": None if self.ca_file is None else str(self.ca_file),
            "certfile": None if self.certificate_file is None else str(self.certificate_file),
            "keyfile": None if self.key_file is None else str(self.key_file),
            "keyfile_password": password,
        }


class ZooKeeperSession:
    """Gets a new session by itself when one is lost; `close` ends it for good."""

    def __init__(self, servers: str, timeout_ms: int, clock: Clock, tls: ZooKeeperTls | None = None) -> None:
        self.servers = servers
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._client = _new_client(servers, timeout_ms, tls)
        self._client.add_listener(lambda state: self.post(self._enter, state))
        # What the server has granted, which may differ from what we requested.
        self._timeout_ms = timeout_ms
        # Counts sessions: an answer in one says nothing of another.
        self._number = 0
        # Counts connections, so that the answer to one is not taken for an answer to the next.
        self._attachment = 0
        self._is_attached = False
        self._usable = asyncio.Event()
        self._lease_until_ms = -math.inf
        self._waits = True
        self._is_closed = False
        self._due = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._restarting: threading.Thread | None = None
        self._on_renewed: Registry[Callable[[float], None]] = Registry()
        self._on_usable: Registry[Callable[[], None]] = Registry()
        self._on_lost: Registry[Callable[[], None]] = Registry()

    @property
    def timeout_s(self) -> float:
        return self._timeout_ms / 1000

    @property
    def keep_alive_s(self) -> float:
        return self.timeout_s / KEEP_ALIVES_PER_SESSION

    @property
    def lease_until_ms(self) -> float:
        return self._lease_until_ms

    async def start(self, patience_ms: int) -> None:
        """Returns with a usable connection."""
        self._client.start_async()
        self._keeping = asyncio.create_task(self._keep_alive(), name="penstock-zookeeper-keep-alive")
        try:
            async with asyncio.timeout(patience_ms / 1000):
                await self._usable.wait()
        except TimeoutError:
            raise CoordinationError(f"no ZooKeeper answers at {self.servers}, tried for {patience_ms} ms") from None

    def on_usable(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever the connection is there again; watches set before are forgotten by then."""
        return self._on_usable.add(callback)

    def on_lost(self, callback: Callable[[], None]) -> Unsubscribe:
        return self._on_lost.add(callback)

    def on_renewed(self, callback: Callable[[float], None]) -> Unsubscribe:
        """Call back after each keep-alive, with the time until which it makes the session hold. Whatever was committed
        before that was sent can be read by now.
        """
        return self._on_renewed.add(callback)

    def renew_soon(self) -> None:
        self._due.set()

    def post(self, call: Callable[..., None], *args: object) -> None:
        """Call on the event loop, from any thread; not any more once the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    async def ask(self, request: Callable[[KazooClient], Any], *, is_write: bool = False) -> Any:
        """The answer to a request; NoNodeError and NodeExistsError are answers, and raised as they are."""
        # In a task of its own: the caller may run outside any (`net/eager.py`), and a time limit needs one.
        return await self._loop.create_task(self._ask(request, is_write))

    async def _ask(self, request: Callable[[KazooClient], Any], is_write: bool) -> Any:
        sent = False
        if not (self._waits or self._usable.is_set()):
            raise CoordinationError(f"ZooKeeper at {self.servers} is not connected; nothing was sent")
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._usable.wait()
                if self._is_closed:
                    raise CoordinationError(f"the connection to ZooKeeper at {self.servers} is closed")
                sent = True
                return await self._send(request, is_write)
        except TimeoutError:
            said = "does not answer; the outcome is unknown" if sent else "is not connected; nothing was sent"
            raise CoordinationError(f"ZooKeeper at {self.servers} {said}") from None

    def stop_waiting(self) -> None:
        """From now on a connection that is not usable is not waited for."""
        self._waits = False

    async def close(self) -> None:
        """Ends the session, and with it its leases; a ZooKeeper that does not answer is not waited for."""
        self._is_closed = True
        self._lease_until_ms = -math.inf
        self._usable.set()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        stopped = asyncio.Event()

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception:
                log.exception("cannot close the connection to ZooKeeper", extra=fields(servers=self.servers))
            finally:
                self.post(stopped.set)

        threading.Thread(target=stop, name="penstock-zookeeper-close", daemon=True).start()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await stopped.wait()
        except TimeoutError:
            log.warning("ZooKeeper does not answer, leaving the session to expire", extra=fields(servers=self.servers))

    def _enter(self, state: str) -> None:
        if self._is_closed:
            return
        self._is_attached = state == KazooState.CONNECTED
        if self._is_attached:
            self._attachment += 1
            self._timeout_ms = self._client._connection.granted_ms
            log.info("connected to ZooKeeper", extra=fields(servers=self.servers, session_ms=self._timeout_ms))
        else:
            self._usable.clear()
        if state == KazooState.SUSPENDED:
            log.warning("lost the connection to ZooKeeper", extra=fields(servers=self.servers))
        if state == KazooState.LOST:
            log.warning("lost the ZooKeeper session", extra=fields(servers=self.servers))
            self._number += 1
            self._lease_until_ms = -math.inf
            for callback in self._on_lost.entries():
                self._loop.call_soon(callback)
        self._due.set()

    async def _send(self, request: Callable[[KazooClient], Any], is_write: bool) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        number, sent_ms = self._number, self._clock.monotonic_ms()

        def answered(result: Any) -> None:
            if is_write and result.exception is None and number == self._number and not self._is_closed:
                self._lease_until_ms = max(self._lease_until_ms, sent_ms + self._timeout_ms * HELD_SHARE)
            if future.done():
                return
            if result.exception is None:
                future.set_result(result.value)
            else:
                future.set_exception(result.exception)

        request(self._client).rawlink(lambda result: self.post(answered, result))
        try:
            return await future
        except (NoNodeError, NodeExistsError):
            raise
        except Exception as error:
            raise CoordinationError(f"ZooKeeper at {self.servers} failed, the outcome is unknown: {error!r}") from error

    async def _keep_alive(self) -> None:
        while True:
            self._due.clear()
            if self._is_attached:
                await self._check_in()
            elif self._client._connection.has_ended:
                self._restart()
            try:
                async with asyncio.timeout(self.keep_alive_s):
                    await self._due.wait()
            except TimeoutError:
                pass

    def _restart(self) -> None:
        """kazoo's thread ends on what it does not know how to handle; this blocks, hence a thread."""
        if self._restarting is not None and self._restarting.is_alive():
            return
        log.error("the ZooKeeper client failed, reconnecting", extra=fields(servers=self.servers))
        self._restarting = threading.Thread(target=self._client.start_async, name="penstock-zookeeper", daemon=True)
        self._restarting.start()

    async def _check_in(self) -> None:
        # Unanswered for a third of the session the connection is not used any more: kazoo looks after a server
        # that does not answer only while it has nothing to send.
        attachment, sent_ms = self._attachment, self._clock.monotonic_ms()
        slow = self._loop.call_later(self.timeout_s / 3, self._usable.clear)
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._send(_write_nothing, is_write=True)
        except (CoordinationError, TimeoutError):
            self._usable.clear()
            return
        finally:
            slow.cancel()
        if not self._is_attached or attachment != self._attachment:
            return
        if not self._usable.is_set():
            self._usable.set()
            for callback in self._on_usable.entries():
                callback()
        for renewed in self._on_renewed.entries():
            renewed(sent_ms + self._timeout_ms * HELD_SHARE)


class RereadOnChange:
    """Reads something of the tree again and again: at first, when its watch fires, when the connection is back."""

    def __init__(
        self, session: ZooKeeperSession, name: str, read: Callable[[WatchFired], Coroutine[None, None, None]]
    ) -> None:
        self._session = session
        self._read = read
        self._due = asyncio.Event()
        self._due.set()
        self._unsubscribe = session.on_usable(self._due.set)
        self._task = asyncio.create_task(self._run(), name=name)

    def stop(self) -> None:
        self._unsubscribe()
        self._task.cancel()

    async def close(self) -> None:
        self.stop()
        await asyncio.wait([self._task])

    def _fired(self, event: Any) -> None:
        self._session.post(self._due.set)

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._read(self._fired)
            except CoordinationError as error:
                log.warning("cannot read from ZooKeeper, retrying", extra=fields(reason=str(error)))
                try:
                    async with asyncio.timeout(self._session.keep_alive_s):
                        await self._due.wait()
                except TimeoutError:
                    self._due.set()


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, which by itself does not say how long a session was granted, nor that it has ended.

    And which waits as long as the session lasts for one server to answer, when there may be others, or when that one
    was just starting and would answer the next time.
    """

    granted_ms = 0

    @property
    def has_ended(self) -> bool:
        """Whether its thread has ended."""
        routine = self._connection_routine
        return routine is not None and not routine.is_alive()

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        answer = super()._invoke(min(timeout, request.time_out / 1000 / 3), request, xid)
        self.granted_ms = answer[0].time_out
        return answer


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, which by themselves try to reach a machine that is gone as long as the session lasts."""

    def __init__(self, connect_s: float) -> None:
        super().__init__()
        self._connect_s = connect_s

    def create_connection(self, *args: Any, **named: Any) -> Any:
        return super().create_connection(*args, **(named | {"timeout": self._connect_s}))


def _new_client(servers: str, timeout_ms: int, tls: ZooKeeperTls | None) -> KazooClient:
    # What kazoo says of each attempt to connect is of no use beside what is logged here.
    quiet = logging.getLogger(f"{__name__}.kazoo")
    quiet.setLevel(logging.ERROR)
    retry = KazooRetry(max_tries=-1, delay=_RETRY_AFTER_S, max_delay=_RETRY_AFTER_AT_MOST_S)
    handler = _Handler(timeout_ms / 1000 / 6)
    client = KazooClient(
        hosts=servers,
        timeout=timeout_ms / 1000,
        handler=handler,
        connection_retry=retry,
        logger=quiet,
        **({} if tls is None else tls.options()),
    )
    client._connection = _Connection(client, client._conn_retry.copy(), logger=quiet)
    return client


def _write_nothing(client: KazooClient) -> Any:
    transaction = client.transaction()
    transaction.check("/", -1)
    return transaction.commit_async()
