"""A database: transactions in threads, each with a time limit.

Rules:

- `run` is one transaction in one thread: it commits when the work returns and rolls back when it raises. The thread
  goes on to the end when the caller is cancelled, so that no transaction stops half-way.
- There are as many threads as connections. A caller that finds none free waits, up to the time limit.
- At the time limit the socket is shut down, which ends whatever waits for the server in the thread.
- A connection that failed is thrown away, and so is one that the server has closed while it was idle.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum, auto
from typing import Any, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.config.database_address import DatabaseAddress, DialectName
from penstock.extras import missing_extra
from penstock.sql.dialects.dialect import Dialect, Row, Session
from penstock.sql.errors import DatabaseError, Unreachable

T = TypeVar("T")

_RETRY_S = 0.1


class _Kind(Enum):
    READ = auto()
    WRITE = auto()
    DDL = auto()


class _Call:
    """One piece of work, which another thread may end when its time is over."""

    def __init__(self, limit_ms: int, clock: Clock) -> None:
        self.limit_ms = limit_ms
        self.is_expired = False
        self.why = f"no answer within {limit_ms} ms"
        """Said of a call that has expired."""
        self._clock = clock
        self._until_ms = clock.monotonic_ms() + limit_ms
        self._lock = threading.Lock()
        self._abort: Callable[[], None] | None = None

    @property
    def remaining_ms(self) -> int:
        return max(1, int(self._until_ms - self._clock.monotonic_ms()))

    def abort_by(self, abort: Callable[[], None]) -> None:
        with self._lock:
            self._abort = abort
            if self.is_expired:
                abort()

    def release(self) -> None:
        """From now on the connection may be another call's."""
        with self._lock:
            self._abort = None

    def expire(self, why: str | None = None) -> None:
        with self._lock:
            self.is_expired = True
            self.why = why or self.why
            if self._abort is not None:
                self._abort()


class Connection:
    """One connection inside one transaction, used by one thread.

    Statements have `?` for parameters in all dialects. Values are None, int, float, str and `bytes`. A statement that
    fails is the end of the transaction, even if the work goes on.
    """

    def __init__(self, database: Database, session: Session, call: _Call) -> None:
        self.dialect = database.dialect
        self.is_deferred = False
        self.error: DatabaseError | None = None
        """The first that a statement failed with. Nothing can be committed after it, on any database."""
        self._database = database
        self._session = session
        self._call = call

    @property
    def driver_connection(self) -> Any:
        """The driver's own connection. The caller must neither commit nor roll back."""
        return self._session.driver_connection

    def execute(self, sql: str, *params: object) -> list[Row]:
        """The rows of a query."""
        return self._guarded(lambda: self._session.execute(sql, params))

    def change(self, sql: str, *params: object) -> int:
        """The number of rows that were found, changed by it or not."""
        return self._guarded(lambda: self._session.change(sql, params))

    def hold_snapshot(self) -> None:
        """Have all that this transaction reads be of one moment; call it before anything else. Without it each
        statement sees what is committed when it begins.
        """
        self._guarded(self._session.hold_snapshot)

    def defer(self) -> None:
        """Send what follows with COMMIT, in one round trip where that can be done.

        A change that must find its row as it is expected has to fail if it does not: set a column to NULL that cannot
        be NULL, and there is a NullRefused. Nothing can be read any more.
        """
        self._guarded(self._session.defer)
        self.is_deferred = True

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Insert many rows in the quickest way that the database has."""
        self.insert_encoded(table, columns, self.dialect.encoded_rows(rows))

    def insert_encoded(self, table: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
        """Insert rows that `Dialect.encoded_rows` gave."""
        if rows:
            self._guarded(lambda: self._session.insert(table, columns, rows))

    def upsert(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Insert rows, or replace those with the same keys; of several rows with one key the last one counts."""
        if rows:
            self._guarded(lambda: self._session.upsert(table, keys, columns, rows))

    def lock_ddl(self) -> None:
        """Inside of `run_ddl`: keeps other clients out until it ends. Raises Contended if it cannot in time."""
        self._guarded(self._session.lock_ddl)

    def limit_lock_wait(self) -> None:
        """Inside of `run_ddl`: raise Contended after a second if another session holds a lock on the table."""
        self._guarded(self._session.limit_lock_wait)

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return self._database._guarded(action, self._call)
        except DatabaseError as error:
            self.error = self.error or error
            raise


class Database:
    """A bounded pool of connections to one database, and the threads that use them; `close` ends both."""

    def __init__(
        self, address: DatabaseAddress, dialect: Dialect, connections: int, timeout_ms: int, clock: Clock
    ) -> None:
        self.address = address
        self.dialect = dialect
        self.connections = connections
        """How many there are at most."""
        self.timeout_ms = timeout_ms
        self._clock = clock
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="penstock-sql")
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._calls: dict[_Call, Callable[[str | None], None]] = {}
        """What is under way, and how it is ended before its time."""
        self._is_closed = False

    @classmethod
    def unconnected(
        cls, address: DatabaseAddress, *, connections: int = 8, timeout_ms: int = 30_000, clock: Clock | None = None
    ) -> Database:
        """Makes its connections when they are needed."""
        return cls(address, _dialect_of(address), connections, timeout_ms, clock or SystemClock())

    @classmethod
    async def open(
        cls,
        address: DatabaseAddress,
        *,
        connections: int = 8,
        timeout_ms: int = 30_000,
        clock: Clock | None = None,
        patience_ms: int = 0,
    ) -> Database:
        """Make a first connection; what is wrong with it is raised. A database that is away is waited for, up to
        `patience_ms`.
        """
        clock = clock or SystemClock()
        until_ms = clock.monotonic_ms() + patience_ms
        database = cls.unconnected(address, connections=connections, timeout_ms=timeout_ms, clock=clock)
        try:
            await database._connect(until_ms)
        except BaseException:
            await database.close()
            raise
        return database

    async def _connect(self, until_ms: float) -> None:
        while True:
            try:
                await self.run(lambda connection: connection.execute("SELECT 1"), is_read_only=True)
                return
            except Unreachable:
                if self._clock.monotonic_ms() >= until_ms:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def run(
        self, work: Callable[[Connection], T], *, is_read_only: bool = False, timeout_ms: int | None = None
    ) -> T:
        """Run `work` as one transaction.

        Pass `is_read_only` for one that only reads: SQLite has one writer at a time, and this leaves that place free.
        """
        return await self._start(work, _Kind.READ if is_read_only else _Kind.WRITE, timeout_ms)

    async def run_ddl(self, work: Callable[[Connection], T], *, timeout_ms: int | None = None) -> T:
        """Run statements that make, change and drop tables.

        One transaction where the database has such transactions; on MySQL each statement stands for itself.
        """
        return await self._start(work, _Kind.DDL, timeout_ms)

    async def close(self) -> None:
        """Calls under way are finished first. Closing twice is allowed."""
        self._is_closed = True
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            self._threads.shutdown(wait=True)
            for session in self._taken_idle():
                session.close()
            _post(loop, lambda: None if ended.done() else ended.set_result(None))

        threading.Thread(target=end, name="penstock-sql-close", daemon=True).start()
        try:
            await ended
        except asyncio.CancelledError:
            self.interrupt("the connection is closed")
            raise

    def interrupt(self, why: str) -> None:
        """Ends all calls under way; each raises Unreachable."""
        for end in list(self._calls.values()):
            end(why)

    async def _start(self, work: Callable[[Connection], T], kind: _Kind, timeout_ms: int | None) -> T:
        if self._is_closed:
            raise Unreachable(f"{self.address}: the connection is closed; nothing was sent")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[T] = loop.create_future()
        call = _Call(timeout_ms or self.timeout_ms, self._clock)
        under_way = self._threads.submit(self._work, work, kind, call)

        def expire(why: str | None = None) -> None:
            if not under_way.cancel():
                call.expire(why)

        self._calls[call] = expire
        timer = loop.call_later(call.limit_ms / 1000, expire)

        def settle() -> None:
            timer.cancel()
            del self._calls[call]
            if waiter.done():
                return
            if under_way.cancelled():
                waiter.set_exception(
                    Unreachable(f"{self.address}: no connection was free for {call.limit_ms} ms; nothing was sent")
                )
                return
            error = under_way.exception()
            if error is None:
                waiter.set_result(under_way.result())
            else:
                waiter.set_exception(error)

        def done(_: Future[T]) -> None:
            _post(loop, settle)

        under_way.add_done_callback(done)
        return await waiter

    # Below this line everything runs in a thread of the pool.

    def _work(self, work: Callable[[Connection], T], kind: _Kind, call: _Call) -> T:
        session = self._session(call)
        is_sound = False
        try:
            call.abort_by(session.abort)
            result = self._transaction(Connection(self, session, call), session, work, kind, call)
            is_sound = True
            return result
        except DatabaseError as error:
            is_sound = kind is not _Kind.DDL and not isinstance(error, Unreachable) and self._rolled_back(session)
            raise
        except BaseException:
            is_sound = kind is not _Kind.DDL and self._rolled_back(session)
            raise
        finally:
            call.release()
            self._give_back(session, is_sound and not call.is_expired)

    def _transaction(
        self, connection: Connection, session: Session, work: Callable[[Connection], T], kind: _Kind, call: _Call
    ) -> T:
        if kind is _Kind.DDL:
            self._guarded(session.begin_ddl, call)
        else:
            self._guarded(lambda: session.begin(is_read_only=kind is _Kind.READ), call)
        result = work(connection)
        if connection.error is not None:
            raise connection.error
        if kind is _Kind.DDL:
            self._guarded(session.end_ddl, call)
            return result
        self._check_time(call)
        try:
            self._told_apart(session.commit, call)
        except DatabaseError as error:
            # What is none of the known refusals may have happened after the commit.
            error.is_outcome_unknown = kind is _Kind.WRITE and type(error) in (Unreachable, DatabaseError)
            raise
        return result

    def _guarded(self, action: Callable[[], T], call: _Call) -> T:
        self._check_time(call)
        return self._told_apart(action, call)

    def _told_apart(self, action: Callable[[], T], call: _Call) -> T:
        try:
            return action()
        except self.dialect.driver_errors as error:
            if call.is_expired:
                raise Unreachable(f"{self.address}: {call.why}") from error
            raise self.dialect.error(error, self.address) from error

    def _check_time(self, call: _Call) -> None:
        if call.is_expired:
            raise Unreachable(f"{self.address}: {call.why}; nothing was committed")

    def _session(self, call: _Call) -> Session:
        while True:
            with self._lock:
                session = self._idle.pop() if self._idle else None
            if session is None:
                return self._guarded(lambda: self._connected(call), call)
            if not session.is_stale():
                return session
            session.close()

    def _connected(self, call: _Call) -> Session:
        return self.dialect.connect(self.address, self.timeout_ms, call.remaining_ms, call.abort_by)

    def _rolled_back(self, session: Session) -> bool:
        try:
            session.rollback()
        except self.dialect.driver_errors:
            return False
        return True

    def _give_back(self, session: Session, is_sound: bool) -> None:
        if is_sound:
            with self._lock:
                self._idle.append(session)
        else:
            session.close()

    def _taken_idle(self) -> list[Session]:
        with self._lock:
            idle, self._idle = self._idle, []
        return idle


def _dialect_of(address: DatabaseAddress) -> Dialect:
    try:
        match address.dialect:
            case DialectName.MYSQL:
                from penstock.sql.dialects.mysql import MySqlDialect

                return MySqlDialect()
            case DialectName.POSTGRESQL:
                from penstock.sql.dialects.postgresql import PostgreSqlDialect

                return PostgreSqlDialect()
            case DialectName.SQLITE:
                from penstock.sql.dialects.sqlite import SqliteDialect

                return SqliteDialect()
    except ModuleNotFoundError as error:
        raise missing_extra(error, f"the database {address}") or error from error


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call on the event loop, from any thread; not any more once the loop is closed."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise
