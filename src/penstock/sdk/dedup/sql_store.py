"""Dedup claims in a SQL database: one table, one row per id. Needs `penstock[sql]`.

Every decision is one statement that changes a row only if it is as expected, so it is atomic at any isolation level.
The database's clock counts, so that consumers on machines with different clocks agree.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from penstock.extras import MissingExtraError, missing_extra
from penstock.sdk.dedup.store import Claim, ClaimedElsewhere, ClaimResult
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.problem_log import error_line

log = logging.getLogger(__name__)

TABLE = "penstock_dedup"
CLEAN_EVERY = 1000
"""Delete expired rows after this many claims of this process."""
CLEAN_ROWS = 10_000
_TRIES = 5
_HASH_CHARS = 64
_MS = 1000


class SqlStore:
    """Keeps business ids in a SQL database, for any number of processes. Creates its table if it does not exist.

    Args:
        url: An address as SQLAlchemy takes it: `mysql+pymysql://user:password@host/database`,
            `postgresql+psycopg://...`, `sqlite:///file`.
        table: The name of the table.

    Raises:
        InvalidInputError: The address is invalid.
        MissingExtraError: The driver that the address names is not installed.
    """

    def __init__(self, url: str, table: str = TABLE) -> None:
        try:
            self._engine = sa.create_engine(url, pool_pre_ping=True, isolation_level=_isolation(url))
        except sa.exc.ArgumentError as error:
            raise InvalidInputError(
                f"SqlStore: {error}; expected an address such as mysql+pymysql://user:password@host/database"
            ) from None
        except ModuleNotFoundError as error:
            # SQLAlchemy loads the driver that the address names.
            what = f"SqlStore({url.partition(':')[0]}://...)"
            raise missing_extra(error, what) or MissingExtraError(
                f"{what} needs the driver {error.name}, which is not installed: pip install {error.name}",
                name=error.name,
            ) from None
        self._table = sa.Table(
            table,
            sa.MetaData(),
            # A business id can be longer than a database key: store its hash.
            sa.Column("id", sa.String(_HASH_CHARS), primary_key=True),
            sa.Column("token", sa.String(_HASH_CHARS), nullable=True),
            sa.Column("until_ms", sa.BigInteger, nullable=False, index=True),
        )
        self._lock = threading.Lock()
        self._is_made = False
        self._claims = 0

    def claim(self, group: str, biz_id: str, token: str, lease_ms: int) -> Claim:
        """Try to claim the id for this token; see `Store.claim`."""
        self._make_table()
        self._clean_now_and_then()
        key = _key(group, biz_id)
        for _ in range(_TRIES):
            try:
                with self._engine.begin() as connection:
                    claim = self._try_to_claim(connection, key, token, lease_ms)
            except IntegrityError:
                claim = None
            if claim is not None:
                return claim
        # Others changed the row at every try, so one of them holds the claim.
        return ClaimedElsewhere(lease_ms)

    def _try_to_claim(self, connection: sa.Connection, key: str, token: str, lease_ms: int) -> Claim | None:
        """None if another consumer was faster."""
        kept, now_ms = self._table.c, self._now_ms(connection)
        row = connection.execute(sa.select(kept.token, kept.until_ms).where(kept.id == key)).one_or_none()
        wanted = {"token": token, "until_ms": now_ms + lease_ms}
        if row is None:
            connection.execute(self._table.insert().values(id=key, **wanted))
            return ClaimResult.CLAIMED
        if row.until_ms > now_ms and row.token is None:
            return ClaimResult.DONE
        if row.until_ms > now_ms and row.token != token:
            return ClaimedElsewhere(row.until_ms - now_ms)
        as_read = sa.and_(kept.id == key, kept.until_ms == row.until_ms, _same(kept.token, row.token))
        is_ours = connection.execute(self._table.update().where(as_read).values(**wanted)).rowcount
        return ClaimResult.CLAIMED if is_ours else None

    def complete(self, group: str, biz_id: str, token: str, window_ms: int) -> bool:
        """Mark the id as done for `window_ms`; False if this token no longer holds the claim."""
        return self._change(group, biz_id, token, {"token": None}, window_ms)

    def extend(self, group: str, biz_id: str, token: str, lease_ms: int) -> bool:
        """Renew the lease from now; False if this token no longer holds the claim."""
        return self._change(group, biz_id, token, {"token": token}, lease_ms)

    def release(self, group: str, biz_id: str, token: str) -> None:
        """Give up the claim; does nothing if this token does not hold it."""
        kept = self._table.c
        with self._engine.begin() as connection:
            connection.execute(self._table.delete().where(kept.id == _key(group, biz_id), kept.token == token))

    def close(self) -> None:
        """Close the connections to the database."""
        self._engine.dispose()

    def _change(self, group: str, biz_id: str, token: str, values: dict[str, Any], lasting_ms: int) -> bool:
        kept = self._table.c
        with self._engine.begin() as connection:
            now_ms = self._now_ms(connection)
            ours = sa.and_(kept.id == _key(group, biz_id), kept.token == token, kept.until_ms > now_ms)
            changed = connection.execute(
                self._table.update().where(ours).values(until_ms=now_ms + lasting_ms, **values)
            )
            return bool(changed.rowcount)

    def _now_ms(self, connection: sa.Connection) -> int:
        match connection.dialect.name:
            case "sqlite":
                asked = "select cast((julianday('now') - 2440587.5) * 86400000 as integer)"
            case "postgresql":
                asked = "select cast(extract(epoch from clock_timestamp()) * 1000 as bigint)"
            case _:
                asked = "select cast(unix_timestamp(now(3)) * 1000 as signed)"
        return int(connection.execute(sa.text(asked)).scalar_one())

    def _make_table(self) -> None:
        with self._lock:
            if self._is_made:
                return
            try:
                self._table.create(self._engine, checkfirst=True)
            except (OperationalError, ProgrammingError):
                # Another process created it meanwhile, or it cannot be created.
                if not sa.inspect(self._engine).has_table(self._table.name):
                    raise
            self._is_made = True

    def _clean_now_and_then(self) -> None:
        with self._lock:
            self._claims += 1
            if self._claims % CLEAN_EVERY:
                return
        try:
            self.clean()
        except sa.exc.SQLAlchemyError as error:
            log.warning("could not delete expired business ids from table %s: %s", self._table.name, error_line(error))

    def clean(self) -> int:
        """Delete expired rows, at most `CLEAN_ROWS`, and return how many."""
        kept = self._table.c
        with self._engine.begin() as connection:
            now_ms = self._now_ms(connection)
            over = sa.select(kept.id).where(kept.until_ms <= now_ms).limit(CLEAN_ROWS)
            keys = list(connection.execute(over).scalars())
            if not keys:
                return 0
            gone = sa.and_(kept.id.in_(keys), kept.until_ms <= now_ms)
            return connection.execute(self._table.delete().where(gone)).rowcount


def _key(group: str, biz_id: str) -> str:
    return hashlib.sha256(f"{len(group)} {group} {biz_id}".encode()).hexdigest()


def _same(column: sa.Column[Any], value: str | None) -> sa.ColumnElement[bool]:
    return column.is_(None) if value is None else column == value


def _isolation(url: str) -> Any:
    """A read inside a transaction has to see what others have committed since it began."""
    return "SERIALIZABLE" if url.startswith("sqlite") else "READ COMMITTED"
