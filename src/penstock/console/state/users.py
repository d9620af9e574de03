"""Users: their role, grants and password. Passwords are argon2 hashes, made in threads, few at a time."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from penstock.clock import Clock
from penstock.console.errors import ConflictError, InvalidError, MissingError
from penstock.console.security.roles import Grant, GrantKind, Role
from penstock.console.state.tables import IDENTITIES, MAX_NAME, USERS
from penstock.sql.database import Connection, Database
from penstock.sql.errors import Duplicate

FIRST_USER = "admin"
MIN_PASSWORD = 12
MAX_PASSWORD = 512
MAX_GRANTS = 200
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@+-]{{0,{MAX_NAME - 1}}}", re.ASCII)
_COLUMNS = ("name", "password_hash", "role", "is_disabled", "grants", "created_at", "changed_at")
_LISTED = ", ".join((*_COLUMNS, "issuer"))
_FROM = f"{USERS} LEFT JOIN {IDENTITIES} ON user_name = name"
_IDENTITY_COLUMNS = ("id", "user_name", "issuer", "subject", "bound_at")
_HASHES_AT_ONCE = 2
"""Each takes tens of megabytes and a core."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of the console; without a password it signs in by other means only."""

    name: str
    role: Role
    grants: tuple[Grant, ...]
    is_disabled: bool
    has_password: bool
    created_ms: int
    changed_ms: int
    issuer: str = ""
    """Of the provider through which it signs in, and which says its role; empty for a user of the console's own."""


class Passwords:
    """Hashes and checks passwords off the event loop."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._turns = asyncio.Semaphore(_HASHES_AT_ONCE)
        self._nobody = ""

    async def hash(self, password: str) -> str:
        async with self._turns:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def matches(self, password_hash: str, password: str) -> bool:
        """Takes as long for a user that does not exist as for one that does."""
        if not self._nobody:
            self._nobody = await self.hash("nobody has this password")
        async with self._turns:
            is_right = await asyncio.to_thread(self._verify, password_hash or self._nobody, password)
        return is_right and bool(password_hash)

    def _verify(self, password_hash: str, password: str) -> bool:
        try:
            return self._hasher.verify(password_hash, password)
        except (Argon2Error, InvalidHashError):
            return False


class Users:
    """The table of users."""

    def __init__(self, database: Database, clock: Clock, passwords: Passwords) -> None:
        self._database = database
        self._clock = clock
        self._passwords = passwords

    async def ensure_first(self) -> None:
        """Makes the first admin if there is no user yet."""
        now_ms = self._clock.now_ms()

        def make(connection: Connection) -> None:
            if not connection.execute(f"SELECT name FROM {USERS} LIMIT 1"):
                row = (FIRST_USER, "", Role.ADMIN.value, 0, "[]", now_ms, now_ms)
                connection.insert(USERS, _COLUMNS, [row])

        await self._database.run(make)

    async def list(self) -> tuple[User, ...]:
        rows = await self._database.run(
            lambda connection: connection.execute(f"SELECT {_LISTED} FROM {_FROM} ORDER BY name"), is_read_only=True
        )
        return tuple(_user(row) for row in rows)

    async def find(self, name: str) -> User | None:
        row = await self._row(name)
        return None if row is None else _user(row)

    async def get(self, name: str) -> User:
        found = await self.find(name)
        if found is None:
            raise MissingError(f"there is no user {name}")
        return found

    async def check_password(self, name: str, password: str) -> User | None:
        """The user, if the password is right and the user is not disabled."""
        row = await self._row(name)
        is_right = await self._passwords.matches("" if row is None else str(row[1]), password[:MAX_PASSWORD])
        if row is None or not is_right:
            return None
        user = _user(row)
        return None if user.is_disabled else user

    async def add(self, name: str, role: Role, grants: Sequence[Grant], password: str | None) -> User:
        _check_name(name)
        check_grants(grants)
        hashed = "" if password is None else await self._hashed(password)
        now_ms = self._clock.now_ms()
        row = (name, hashed, role.value, 0, _spell(grants), now_ms, now_ms)
        try:
            await self._database.run(lambda connection: connection.insert(USERS, _COLUMNS, [row]))
        except Duplicate:
            raise ConflictError(f"there is a user {name} already; nothing was changed") from None
        return await self.get(name)

    async def alter(
        self, name: str, role: Role | None, grants: Sequence[Grant] | None, is_disabled: bool | None
    ) -> tuple[User, User]:
        """Changes what is not None; gives the user before and after. The last admin stays one."""
        if grants is not None:
            check_grants(grants)
        now_ms = self._clock.now_ms()

        def alter(connection: Connection) -> tuple[User, User]:
            users = {row[0]: _user(row) for row in connection.execute(f"SELECT {_LISTED} FROM {_FROM}")}
            before = users.get(name)
            if before is None:
                raise MissingError(f"there is no user {name}; nothing was changed")
            after = replace(
                before,
                role=before.role if role is None else role,
                grants=before.grants if grants is None else tuple(grants),
                is_disabled=before.is_disabled if is_disabled is None else is_disabled,
                changed_ms=now_ms,
            )
            _keep_an_admin({**users, name: after}.values())
            connection.change(
                f"UPDATE {USERS} SET role = ?, grants = ?, is_disabled = ?, changed_at = ? WHERE name = ?",
                after.role.value, _spell(after.grants), int(after.is_disabled), now_ms, name,
            )  # fmt: skip
            return before, after

        return await self._database.run(alter)

    async def provide(self, issuer: str, subject: str, name: str, role: Role) -> tuple[User | None, User]:
        """The user whom a provider vouches for, before and after: made at its first login, with the provider's role
        at every one. ConflictError if the name is another's.
        """
        _check_name(name)
        key, now_ms = _identity(issuer, subject), self._clock.now_ms()

        def provide(connection: Connection) -> tuple[User | None, User]:
            bound = connection.execute(f"SELECT user_name FROM {IDENTITIES} WHERE id = ?", key)
            if bound:
                before = _one(connection, str(bound[0][0]))
                assert before is not None, "a user goes together with its identity"
                after = replace(before, role=role, changed_ms=now_ms)
                connection.change(
                    f"UPDATE {USERS} SET role = ?, changed_at = ? WHERE name = ?", role.value, now_ms, before.name
                )
                return before, after
            if name == FIRST_USER or _one(connection, name) is not None:
                raise ConflictError(
                    f"there is a user {name} of the console already, who does not sign in through {issuer}; an admin "
                    "can remove it, or name users by another claim"
                )
            connection.insert(USERS, _COLUMNS, [(name, "", role.value, 0, "[]", now_ms, now_ms)])
            connection.insert(IDENTITIES, _IDENTITY_COLUMNS, [(key, name, issuer, subject, now_ms)])
            return None, User(name, role, (), False, False, now_ms, now_ms, issuer)

        return await self._database.run(provide)

    async def found_by_identity(self, issuer: str, subject: str) -> User | None:
        key = _identity(issuer, subject)

        def find(connection: Connection) -> User | None:
            bound = connection.execute(f"SELECT user_name FROM {IDENTITIES} WHERE id = ?", key)
            return _one(connection, str(bound[0][0])) if bound else None

        return await self._database.run(find, is_read_only=True)

    async def set_password(self, name: str, password: str | None) -> None:
        """None takes it away."""
        if (await self.get(name)).issuer and password is not None:
            raise InvalidError(f"{name} signs in through a provider and has no password here; nothing was changed")
        hashed = "" if password is None else await self._hashed(password)
        now_ms = self._clock.now_ms()
        await self._database.run(
            lambda connection: connection.change(
                f"UPDATE {USERS} SET password_hash = ?, changed_at = ? WHERE name = ?", hashed, now_ms, name
            )
        )

    async def remove(self, name: str) -> User:
        def remove(connection: Connection) -> User:
            users = {row[0]: _user(row) for row in connection.execute(f"SELECT {_LISTED} FROM {_FROM}")}
            before = users.pop(name, None)
            if before is None:
                raise MissingError(f"there is no user {name}; nothing was removed")
            _keep_an_admin(users.values())
            connection.change(f"DELETE FROM {USERS} WHERE name = ?", name)
            connection.change(f"DELETE FROM {IDENTITIES} WHERE user_name = ?", name)
            return before

        return await self._database.run(remove)

    async def _hashed(self, password: str) -> str:
        if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
            raise InvalidError(
                f"a password has {MIN_PASSWORD} to {MAX_PASSWORD} characters; the password was not changed"
            )
        return await self._passwords.hash(password)

    async def _row(self, name: str) -> tuple[object, ...] | None:
        rows = await self._database.run(
            lambda connection: connection.execute(f"SELECT {_LISTED} FROM {_FROM} WHERE name = ?", name[:MAX_NAME]),
            is_read_only=True,
        )
        return rows[0] if rows else None


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidError(
            f"a user's name is up to {MAX_NAME} letters, digits and . _ @ + -, not {name!r}; no user was added"
        )


def check_grants(grants: Sequence[Grant]) -> None:
    if len(grants) > MAX_GRANTS:
        raise InvalidError(f"a user has at most {MAX_GRANTS} grants; nothing was changed")


def _keep_an_admin(users: object) -> None:
    assert hasattr(users, "__iter__")
    if not any(user.role is Role.ADMIN and not user.is_disabled for user in users):
        raise ConflictError("this is the last admin, without whom the console cannot be governed; nothing was changed")


def _identity(issuer: str, subject: str) -> str:
    return hashlib.sha256(f"{issuer}\n{subject}".encode()).hexdigest()


def _one(connection: Connection, name: str) -> User | None:
    rows = connection.execute(f"SELECT {_LISTED} FROM {_FROM} WHERE name = ?", name)
    return _user(rows[0]) if rows else None


def _user(row: tuple[object, ...]) -> User:
    name, password_hash, role, is_disabled, grants, created_ms, changed_ms, issuer = row
    assert isinstance(created_ms, int) and isinstance(changed_ms, int)
    return User(
        str(name), Role(role), _parse(str(grants)), bool(is_disabled), bool(password_hash), created_ms, changed_ms,
        str(issuer or ""),
    )  # fmt: skip


def _spell(grants: Sequence[Grant]) -> str:
    return json.dumps(
        [
            {"kind": each.kind.value, "prefix": each.prefix, "role": each.role.value, "cluster": each.cluster}
            for each in grants
        ]
    )


def _parse(text: str) -> tuple[Grant, ...]:
    return tuple(
        Grant(GrantKind(each["kind"]), each["prefix"], Role(each["role"]), each["cluster"]) for each in json.loads(text)
    )
