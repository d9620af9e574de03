"""Operations on users of the console, and on the rules for what their roles see of messages."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.console.errors import InvalidError
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.security.masking import MaskingRule, MaskingRules
from penstock.console.security.roles import Caller, Grant, Role
from penstock.console.state.audit import AuditLog
from penstock.console.state.sessions import ApiToken, Sessions
from penstock.console.state.users import User, Users


class UserOperations(Service):
    """Users, their tokens, masking rules."""

    def __init__(self, audit: AuditLog, users: Users, sessions: Sessions, masking: MaskingRules) -> None:
        super().__init__(audit)
        self._users = users
        self._sessions = sessions
        self._masking = masking

    @query("users.list", Role.ADMIN, Scope.CONSOLE)
    async def list(self, caller: Caller) -> tuple[User, ...]:
        return await self._users.list()

    @change("users.add", Role.ADMIN, Scope.CONSOLE, hidden=("password",))
    async def add(
        self, caller: Caller, name: str, role: Role, grants: Sequence[Grant] = (), password: str | None = None
    ) -> Changed[User]:
        made = await self._users.add(name, role, grants, password)
        return Changed(made, None, made)

    @change("users.alter", Role.ADMIN, Scope.CONSOLE)
    async def alter(
        self,
        caller: Caller,
        name: str,
        role: Role | None = None,
        grants: Sequence[Grant] | None = None,
        is_disabled: bool | None = None,
    ) -> Changed[User]:
        """Changes what is given. The user's sessions end if it is disabled, and see the new role at once if not."""
        before, after = await self._users.alter(name, role, grants, is_disabled)
        if after.is_disabled:
            await self._sessions.end_all(name)
        self._sessions.forget(name)
        return Changed(after, before, after)

    @change("users.set_password", Role.ADMIN, Scope.CONSOLE, hidden=("password",))
    async def set_password(self, caller: Caller, name: str, password: str | None) -> Changed[None]:
        """Sets a user's password, or takes it away; the user's sessions end."""
        await self._users.set_password(name, password)
        await self._sessions.end_all(name, but=caller.session)
        return Changed(None)

    @change("users.remove", Role.ADMIN, Scope.CONSOLE)
    async def remove(self, caller: Caller, name: str) -> Changed[None]:
        if name == caller.name:
            raise InvalidError("you cannot remove yourself; another admin can. Nothing was removed")
        before = await self._users.remove(name)
        await self._sessions.end_all(name)
        await self._sessions.remove_tokens_of(name)
        return Changed(None, before, None)

    @query("users.tokens", Role.ADMIN, Scope.CONSOLE)
    async def tokens(self, caller: Caller) -> tuple[ApiToken, ...]:
        """Of all users."""
        return await self._sessions.tokens()

    @change("users.remove_token", Role.ADMIN, Scope.CONSOLE)
    async def remove_token(self, caller: Caller, id: str) -> Changed[None]:
        return Changed(None, await self._sessions.remove_token(id), None)

    @query("masking.list", Role.ADMIN, Scope.CONSOLE)
    async def masking_rules(self, caller: Caller) -> tuple[MaskingRule, ...]:
        return await self._masking.list()

    @change("masking.add", Role.ADMIN, Scope.CONSOLE)
    async def add_masking_rule(self, caller: Caller, rule: MaskingRule) -> Changed[MaskingRule]:
        made = await self._masking.add(rule)
        return Changed(made, None, made)

    @change("masking.remove", Role.ADMIN, Scope.CONSOLE)
    async def remove_masking_rule(self, caller: Caller, id: str) -> Changed[None]:
        return Changed(None, await self._masking.remove(id), None)
