"""/api/users, /api/tokens, /api/masking-rules: users, their tokens, and what they see of messages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import Id
from penstock.console.messages.json_path import MAX_PATH
from penstock.console.security.masking import MaskedPart, MaskingRule
from penstock.console.security.roles import Grant, GrantKind, Role
from penstock.console.state.sessions import ApiToken
from penstock.console.state.users import MAX_GRANTS, MAX_PASSWORD, User

router = APIRouter(tags=["users"])

UserName = Annotated[str, Path(max_length=128)]


class GrantBody(BaseModel):
    kind: GrantKind
    prefix: str = Field(max_length=255)
    role: Role
    cluster: str | None = Field(None, max_length=64)

    def value(self) -> Grant:
        return Grant(self.kind, self.prefix, self.role, self.cluster)


Grants = Annotated[list[GrantBody], Field(max_length=MAX_GRANTS)]


class UserRequest(BaseModel):
    name: str = Field(min_length=1, max_length=128)
    role: Role
    grants: Grants = Field(default_factory=list)
    password: str | None = Field(None, max_length=MAX_PASSWORD)


class UserChange(BaseModel):
    role: Role | None = None
    grants: Grants | None = None
    is_disabled: bool | None = None


class NewPassword(BaseModel):
    password: str | None = Field(max_length=MAX_PASSWORD, description="Null takes it away.")


class MaskingRequest(BaseModel):
    part: MaskedPart
    topic_prefix: str = Field("", max_length=249)
    path: str = Field("", max_length=MAX_PATH, description="A JSON path such as $.card, or the name of a header.")
    visible_from: Role = Field(Role.ADMIN, description="The lowest role that sees it.")
    cluster: str | None = Field(None, max_length=64)


@router.get("/users")
async def list_users(console: TheConsole, caller: TheCaller) -> tuple[User, ...]:
    return await console.users_and_rules.list(caller)


@router.post("/users", status_code=201)
async def add_user(console: TheConsole, caller: TheCaller, body: UserRequest) -> User:
    grants = [each.value() for each in body.grants]
    return await console.users_and_rules.add(caller, body.name, body.role, grants, body.password)


@router.patch("/users/{name}")
async def alter_user(console: TheConsole, caller: TheCaller, name: UserName, body: UserChange) -> User:
    grants = None if body.grants is None else [each.value() for each in body.grants]
    return await console.users_and_rules.alter(caller, name, body.role, grants, body.is_disabled)


@router.put("/users/{name}/password", status_code=204)
async def set_user_password(console: TheConsole, caller: TheCaller, name: UserName, body: NewPassword) -> None:
    await console.users_and_rules.set_password(caller, name, body.password)


@router.delete("/users/{name}", status_code=204)
async def remove_user(console: TheConsole, caller: TheCaller, name: UserName) -> None:
    await console.users_and_rules.remove(caller, name)


@router.get("/tokens")
async def list_tokens(console: TheConsole, caller: TheCaller) -> tuple[ApiToken, ...]:
    """The tokens of all users, without their texts."""
    return await console.users_and_rules.tokens(caller)


@router.delete("/tokens/{id}", status_code=204)
async def remove_any_token(console: TheConsole, caller: TheCaller, id: Id) -> None:
    await console.users_and_rules.remove_token(caller, id)


@router.get("/masking-rules")
async def list_masking_rules(console: TheConsole, caller: TheCaller) -> tuple[MaskingRule, ...]:
    return await console.users_and_rules.masking_rules(caller)


@router.post("/masking-rules", status_code=201)
async def add_masking_rule(console: TheConsole, caller: TheCaller, body: MaskingRequest) -> MaskingRule:
    rule = MaskingRule(body.part, body.topic_prefix, body.path, body.visible_from, body.cluster)
    return await console.users_and_rules.add_masking_rule(caller, rule)


@router.delete("/masking-rules/{id}", status_code=204)
async def remove_masking_rule(console: TheConsole, caller: TheCaller, id: Id) -> None:
    await console.users_and_rules.remove_masking_rule(caller, id)
