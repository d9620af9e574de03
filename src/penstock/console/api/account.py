"""/api/account: the caller's own account, sessions and tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.operations.account import Account, NewToken
from penstock.console.security.roles import Role
from penstock.console.state.sessions import ApiToken, Session
from penstock.console.state.users import MAX_PASSWORD, MIN_PASSWORD

router = APIRouter(prefix="/account", tags=["account"])
MAX_TIME_MS = 2**53

Id = Annotated[str, Path(max_length=64)]


class PasswordChange(BaseModel):
    old: str | None = Field(None, max_length=MAX_PASSWORD)
    new: str = Field(min_length=MIN_PASSWORD, max_length=MAX_PASSWORD)


class TokenRequest(BaseModel):
    label: str = Field(min_length=1, max_length=100)
    role: Role = Role.VIEWER
    expires_ms: int = Field(0, ge=0, le=MAX_TIME_MS, description="Milliseconds since 1970; 0: never.")


@router.get("")
async def show(console: TheConsole, caller: TheCaller) -> Account:
    """The signed-in user, with the CSRF token that changes carry in the header X-CSRF-Token."""
    return await console.account.show(caller)


@router.put("/password", status_code=204)
async def set_password(console: TheConsole, caller: TheCaller, body: PasswordChange) -> None:
    """Sets the caller's password; all other sessions of the caller end."""
    await console.account.set_password(caller, body.old, body.new)


@router.get("/sessions")
async def sessions(console: TheConsole, caller: TheCaller) -> tuple[Session, ...]:
    return tuple(_shown(each) for each in await console.account.sessions(caller))


@router.delete("/sessions/current", status_code=204)
async def sign_out(console: TheConsole, caller: TheCaller) -> None:
    await console.account.sign_out(caller)


@router.delete("/sessions/{id}", status_code=204)
async def end_session(console: TheConsole, caller: TheCaller, id: Id) -> None:
    await console.account.end_session(caller, id)


@router.get("/tokens")
async def tokens(console: TheConsole, caller: TheCaller) -> tuple[ApiToken, ...]:
    return await console.account.tokens(caller)


@router.post("/tokens", status_code=201)
async def add_token(console: TheConsole, caller: TheCaller, body: TokenRequest) -> NewToken:
    """Makes a token for scripts; its text is shown only now."""
    return await console.account.add_token(caller, body.label, body.role, body.expires_ms)


@router.delete("/tokens/{id}", status_code=204)
async def remove_token(console: TheConsole, caller: TheCaller, id: Id) -> None:
    await console.account.remove_token(caller, id)


def _shown(session: Session) -> Session:
    """Without the secret that protects it."""
    return Session(session.id, session.user, "", session.created_ms, session.seen_ms, session.address, session.agent)
