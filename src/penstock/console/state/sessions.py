"""Sessions of browsers, and tokens of scripts.

The cookie and the token are random; the table has only their hashes, so a thief cannot sign in with a copy of the
database. Every login makes a new session, whatever cookie came with it. A session ends when it was idle for too long,
when it is too old, on logout, and when its user is disabled, removed or given another role or password.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.console.errors import BusyError, MissingError
from penstock.console.security.roles import Caller, Role, Via
from penstock.console.settings import SecuritySettings
from penstock.console.state.tables import MAX_ADDRESS, MAX_NAME, SESSIONS, TOKENS, new_id
from penstock.console.state.users import User, Users
from penstock.sql.database import Connection, Database

TOKEN_PREFIX = "pst_"
_SESSION_COLUMNS = ("id", "user_name", "csrf", "created_at", "seen_at", "address", "agent")
_TOKEN_COLUMNS = ("id", "secret_hash", "user_name", "label", "role", "created_at", "expires_at", "used_at")
_CACHE_MS = 2_000
_SEEN_EVERY_MS = 60_000
_MAX_CACHED = 5_000
NEVER = 0


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in browser."""

    id: str
    user: str
    csrf: str
    created_ms: int
    seen_ms: int
    address: str
    agent: str


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a browser is given: the cookie, which is nowhere else, and the session."""

    cookie: str
    session: Session


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token of a script; it acts as its user, with this role at most."""

    id: str
    user: str
    label: str
    role: Role
    created_ms: int
    expires_ms: int
    """0: never."""
    used_ms: int


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A caller with a session, and what that session is protected by."""

    caller: Caller
    session: Session | None


class Sessions:
    """The tables of sessions and tokens, with a cache of a moment."""

    def __init__(self, database: Database, clock: Clock, users: Users, settings: SecuritySettings) -> None:
        self._database = database
        self._clock = clock
        self._users = users
        self._settings = settings
        self._cached: OrderedDict[str, tuple[float, Session, User]] = OrderedDict()
        self._on_end: list[Callable[[str], None]] = []

    def on_end(self, listener: Callable[[str], None]) -> None:
        """Called with the id of each session that this console ends before its time, to close what it has open."""
        self._on_end.append(listener)

    async def open(self, user: str, address: str, agent: str) -> NewSession:
        """A new session; the oldest of too many is ended."""
        cookie, now_ms = secrets.token_urlsafe(32), self._clock.now_ms()
        made = Session(
            digest(cookie), user, secrets.token_urlsafe(24), now_ms, now_ms, address[:MAX_ADDRESS], agent[:200]
        )
        row = (made.id, made.user, made.csrf, now_ms, now_ms, made.address, made.agent)

        def insert(connection: Connection) -> list[str]:
            held = connection.execute(f"SELECT id FROM {SESSIONS} WHERE user_name = ? ORDER BY seen_at DESC", user)
            surplus = [str(each[0]) for each in held[self._settings.max_sessions_per_user - 1 :]]
            for id in surplus:
                connection.change(f"DELETE FROM {SESSIONS} WHERE id = ?", id)
            connection.insert(SESSIONS, _SESSION_COLUMNS, [row])
            return surplus

        self._ended(await self._database.run(insert))
        return NewSession(cookie, made)

    async def signed_in(self, cookie: str, address: str) -> SignedIn | None:
        """The user with this cookie; None if the session has ended."""
        return await self.by_id(digest(cookie), address)

    async def by_id(self, id: str, address: str = "") -> SignedIn | None:
        """The same by the key of the session, for what goes on after the first request."""
        now_ms = self._clock.now_ms()
        cached = self._cached.get(id)
        if cached is None or self._clock.monotonic_ms() - cached[0] > _CACHE_MS:
            found = await self._load(id)
            if found is None:
                self._cached.pop(id, None)
                return None
            cached = (self._clock.monotonic_ms(), *found)
            self._cached[id] = cached
            while len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        _, session, user = cached
        if user.is_disabled or self._is_over(session, now_ms):
            await self.end(id)
            return None
        if now_ms - session.seen_ms > _SEEN_EVERY_MS:
            await self._seen(id, now_ms)
        caller = Caller(
            name=user.name, role=user.role, grants=user.grants, address=address or session.address, session=id
        )
        return SignedIn(caller, session)

    async def end(self, id: str) -> None:
        await self._database.run(lambda connection: connection.change(f"DELETE FROM {SESSIONS} WHERE id = ?", id))
        self._ended([id])

    async def end_all(self, user: str, but: str | None = None) -> int:
        """Ends the sessions of a user, except one; gives how many."""

        def delete(connection: Connection) -> list[str]:
            rows = connection.execute(f"SELECT id FROM {SESSIONS} WHERE user_name = ?", user)
            ids = [str(row[0]) for row in rows if row[0] != but]
            for id in ids:
                connection.change(f"DELETE FROM {SESSIONS} WHERE id = ?", id)
            return ids

        ended = await self._database.run(delete)
        self._ended(ended)
        for id, (_, _, held) in list(self._cached.items()):
            if held.name == user:
                del self._cached[id]
        return len(ended)

    async def list(self, user: str) -> tuple[Session, ...]:
        rows = await self._database.run(
            lambda connection: connection.execute(
                f"SELECT {', '.join(_SESSION_COLUMNS)} FROM {SESSIONS} WHERE user_name = ? ORDER BY seen_at DESC", user
            ),
            is_read_only=True,
        )
        return tuple(Session(*row) for row in rows)

    async def remove_expired(self) -> int:
        now_ms = self._clock.now_ms()
        idle, old = now_ms - self._settings.session_idle_ms, now_ms - self._settings.session_max_ms
        return await self._database.run(
            lambda connection: connection.change(
                f"DELETE FROM {SESSIONS} WHERE seen_at < ? OR created_at < ?", idle, old
            )
        )

    async def add_token(self, user: str, label: str, role: Role, expires_ms: int) -> tuple[ApiToken, str]:
        """A token, and the text that is shown once."""
        held = await self.tokens(user)
        if len(held) >= self._settings.max_tokens_per_user:
            raise BusyError(f"{user} has {len(held)} tokens, which is the most; remove one first. No token was made")
        made = ApiToken(new_id(self._clock), user, label[:MAX_NAME], role, self._clock.now_ms(), expires_ms, NEVER)
        text = f"{TOKEN_PREFIX}{made.id}_{secrets.token_urlsafe(32)}"
        row = (made.id, digest(text), user, made.label, role.value, made.created_ms, expires_ms, NEVER)
        await self._database.run(lambda connection: connection.insert(TOKENS, _TOKEN_COLUMNS, [row]))
        return made, text

    async def tokens(self, user: str | None = None) -> tuple[ApiToken, ...]:
        where, params = ("", []) if user is None else (" WHERE user_name = ?", [user])
        rows = await self._database.run(
            lambda connection: connection.execute(
                f"SELECT {', '.join(_TOKEN_COLUMNS)} FROM {TOKENS}{where} ORDER BY id", *params
            ),
            is_read_only=True,
        )
        return tuple(_token(row) for row in rows)

    async def remove_token(self, id: str) -> ApiToken:
        """MissingError if there is none."""

        def remove(connection: Connection) -> ApiToken:
            rows = connection.execute(f"SELECT {', '.join(_TOKEN_COLUMNS)} FROM {TOKENS} WHERE id = ?", id)
            if not rows:
                raise MissingError(f"there is no token {id}; nothing was removed")
            connection.change(f"DELETE FROM {TOKENS} WHERE id = ?", id)
            return _token(rows[0])

        return await self._database.run(remove)

    async def remove_tokens_of(self, user: str) -> None:
        await self._database.run(
            lambda connection: connection.change(f"DELETE FROM {TOKENS} WHERE user_name = ?", user)
        )

    async def caller_of_token(self, text: str, address: str) -> Caller | None:
        """The caller with this token; None if it is unknown, has expired, or its user is disabled."""
        row = await self._token_row(text.removeprefix(TOKEN_PREFIX).partition("_")[0])
        if row is None or not hmac.compare_digest(str(row[1]), digest(text)):
            return None
        return await self._caller_with(_token(row), address)

    async def current(self, caller: Caller) -> Caller | None:
        """A caller with the rights that it has now; None if its session or its token has ended. For what goes on after
        a request.
        """
        if caller.session is not None:
            found = await self.by_id(caller.session, caller.address)
            return None if found is None else found.caller
        if caller.token is not None:
            row = await self._token_row(caller.token)
            return None if row is None else await self._caller_with(_token(row), caller.address)
        return caller

    async def _token_row(self, id: str) -> tuple[object, ...] | None:
        def find(connection: Connection) -> tuple[object, ...] | None:
            rows = connection.execute(f"SELECT {', '.join(_TOKEN_COLUMNS)} FROM {TOKENS} WHERE id = ?", id[:32])
            return rows[0] if rows else None

        return await self._database.run(find, is_read_only=True)

    async def _caller_with(self, token: ApiToken, address: str) -> Caller | None:
        """None if the token has expired, or its user is disabled."""
        id, now_ms = token.id, self._clock.now_ms()
        user = await self._users.find(token.user)
        if user is None or user.is_disabled or NEVER < token.expires_ms <= now_ms:
            return None
        if now_ms - token.used_ms > _SEEN_EVERY_MS:
            await self._database.run(
                lambda connection: connection.change(f"UPDATE {TOKENS} SET used_at = ? WHERE id = ?", now_ms, id)
            )
        role = min(user.role, token.role, key=lambda each: each.rank)
        grants = tuple(each for each in user.grants if token.role.covers(each.role))
        return Caller(name=user.name, role=role, grants=grants, address=address, via=Via.TOKEN, token=id)

    def forget(self, user: str) -> None:
        """What is remembered of a user that was changed."""
        for id, (_, _, held) in list(self._cached.items()):
            if held.name == user:
                del self._cached[id]

    def _is_over(self, session: Session, now_ms: int) -> bool:
        return (
            now_ms - session.seen_ms >= self._settings.session_idle_ms
            or now_ms - session.created_ms >= self._settings.session_max_ms
        )

    async def _load(self, id: str) -> tuple[Session, User] | None:
        rows = await self._database.run(
            lambda connection: connection.execute(
                f"SELECT {', '.join(_SESSION_COLUMNS)} FROM {SESSIONS} WHERE id = ?", id
            ),
            is_read_only=True,
        )
        if not rows:
            return None
        session = Session(*rows[0])
        user = await self._users.find(session.user)
        return None if user is None else (session, user)

    async def _seen(self, id: str, now_ms: int) -> None:
        self._cached.pop(id, None)
        await self._database.run(
            lambda connection: connection.change(f"UPDATE {SESSIONS} SET seen_at = ? WHERE id = ?", now_ms, id)
        )

    def _ended(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._cached.pop(id, None)
            for listener in self._on_end:
                listener(id)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _token(row: tuple[object, ...]) -> ApiToken:
    id, _, user, label, role, created_ms, expires_ms, used_ms = row
    assert isinstance(created_ms, int) and isinstance(expires_ms, int) and isinstance(used_ms, int)
    return ApiToken(str(id), str(user), str(label), Role(role), created_ms, expires_ms, used_ms)
