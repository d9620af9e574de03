"""Operations of users on their own account: who they are, their password, sessions and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.console.errors import InvalidError, MissingError
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.security.login_limits import LoginLimits
from penstock.console.security.roles import Caller, Grant, Role
from penstock.console.state.audit import AuditLog
from penstock.console.state.sessions import ApiToken, Session, Sessions
from penstock.console.state.users import Users


@dataclass(frozen=True, slots=True)
class Account:
    """The signed-in user, and the token that changes carry."""

    name: str
    role: Role
    grants: tuple[Grant, ...]
    via: str
    has_password: bool
    csrf: str
    """Empty for a token."""
    issuer: str
    """Of the provider through which this user signs in; empty for a user of the console's own."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token, with the text that is shown once."""

    token: ApiToken
    text: str


class AccountOperations(Service):
    """What every user may do, whatever the role."""

    def __init__(self, audit: AuditLog, users: Users, sessions: Sessions, limits: LoginLimits) -> None:
        super().__init__(audit)
        self._users = users
        self._sessions = sessions
        self._limits = limits

    @query("account.show", Role.NONE, Scope.SELF)
    async def show(self, caller: Caller) -> Account:
        user = await self._users.get(caller.name)
        found = None if caller.session is None else await self._sessions.by_id(caller.session)
        csrf = "" if found is None or found.session is None else found.session.csrf
        return Account(caller.name, caller.role, caller.grants, caller.via.value, user.has_password, csrf, user.issuer)

    @change("account.set_password", Role.NONE, Scope.SELF, hidden=("old", "new"))
    async def set_password(self, caller: Caller, old: str | None, new: str) -> Changed[None]:
        """The old one is needed if there is one: guessing it is as limited as at the login. All other sessions of the
        user end.
        """
        user = await self._users.get(caller.name)
        self._limits.check(caller.name, caller.address)
        if user.has_password and await self._users.check_password(caller.name, old or "") is None:
            self._limits.failed(caller.name, caller.address)
            raise InvalidError("the old password is wrong; the password was not changed")
        await self._users.set_password(caller.name, new)
        await self._sessions.end_all(caller.name, but=caller.session)
        return Changed(None)

    @change("account.sign_out", Role.NONE, Scope.SELF)
    async def sign_out(self, caller: Caller) -> Changed[None]:
        if caller.session is not None:
            await self._sessions.end(caller.session)
        return Changed(None)

    @query("account.sessions", Role.NONE, Scope.SELF)
    async def sessions(self, caller: Caller) -> tuple[Session, ...]:
        return await self._sessions.list(caller.name)

    @change("account.end_session", Role.NONE, Scope.SELF)
    async def end_session(self, caller: Caller, id: str) -> Changed[None]:
        if id not in {session.id for session in await self._sessions.list(caller.name)}:
            raise MissingError("you have no such session; nothing was ended")
        await self._sessions.end(id)
        return Changed(None)

    @query("account.tokens", Role.NONE, Scope.SELF)
    async def tokens(self, caller: Caller) -> tuple[ApiToken, ...]:
        return await self._sessions.tokens(caller.name)

    @change("account.add_token", Role.NONE, Scope.SELF)
    async def add_token(self, caller: Caller, label: str, role: Role, expires_ms: int = 0) -> Changed[NewToken]:
        """A token never has more rights than its user."""
        if not caller.highest_role.covers(role):
            raise InvalidError(f"a token cannot have the role {role.value}, which you do not have; no token was made")
        token, text = await self._sessions.add_token(caller.name, label, role, expires_ms)
        return Changed(NewToken(token, text), None, token)

    @change("account.remove_token", Role.NONE, Scope.SELF)
    async def remove_token(self, caller: Caller, id: str) -> Changed[None]:
        if id not in {token.id for token in await self._sessions.tokens(caller.name)}:
            raise MissingError("you have no such token; nothing was removed")
        return Changed(None, await self._sessions.remove_token(id), None)
