"""How an operation is declared: its name, the role it needs, what that role must be on, and whether it changes things.

    class TopicOperations(Service):
        @change("topics.delete", Role.ADMIN, Scope.TOPIC)
        async def delete(self, caller: Caller, cluster: str, topic: str, confirm: str) -> Changed[None]: ...

Rules:
- An operation is a method of a `Service`; its first argument is the caller. The declaration wraps it, authorises the
  caller and audits what the operation does, for the API and the pages alike. There is no way around it.
- `Scope` says which arguments name the resource: `cluster`, and `topic` or `group`. ANY is for lists, which leave out
  what the caller does not see; the caller must see something.
- A change returns `Changed`, with the state before and after for the audit log; callers get its result.
- A change is in the audit log before it begins: if it cannot be written there, nothing is done.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from penstock.console.errors import RefusedError
from penstock.console.security.roles import Caller, Role
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.console.state.audit import AuditLog

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Service")

HIDDEN = "(hidden)"


class Scope(Enum):
    """What the role has to be on."""

    CONSOLE = "console"
    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    ANY = "any"
    """The caller's highest role on anything counts; the operation leaves out what the caller does not see."""
    SELF = "self"
    """The caller's own account."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The declaration of an operation."""

    name: str
    role: Role
    scope: Scope
    is_change: bool
    is_audited: bool
    hidden: frozenset[str]
    """Arguments that the audit log does not show."""


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """What a change gives, and what it changed."""

    result: T
    before: object = None
    after: object = None
    problem: str = ""
    """What of it failed, if it is about several things."""


class Service:
    """A set of operations on one kind of thing."""

    def __init__(self, audit: AuditLog) -> None:
        self.audit_log = audit


def query(
    name: str, role: Role, scope: Scope, *, is_audited: bool = False
) -> Callable[
    [Callable[Concatenate[S, Caller, P], Awaitable[T]]], Callable[Concatenate[S, Caller, P], Coroutine[Any, Any, T]]
]:
    """Declares an operation that changes nothing; `is_audited` for those that show messages."""
    declared = Operation(name, role, scope, False, is_audited, frozenset())

    def declare(
        method: Callable[Concatenate[S, Caller, P], Awaitable[T]],
    ) -> Callable[Concatenate[S, Caller, P], Coroutine[Any, Any, T]]:
        signature = inspect.signature(method)

        @wraps(method)
        async def run(self: S, caller: Caller, *args: P.args, **kwargs: P.kwargs) -> T:
            asked = _arguments(signature, self, caller, args, kwargs)
            await _authorise(self.audit_log, declared, caller, asked)
            if declared.is_audited:
                await self.audit_log.record(declared, caller, asked)
            return await method(self, caller, *args, **kwargs)

        run.operation = declared  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return declare


def change(
    name: str, role: Role, scope: Scope, *, hidden: tuple[str, ...] = ()
) -> Callable[
    [Callable[Concatenate[S, Caller, P], Awaitable[Changed[T]]]],
    Callable[Concatenate[S, Caller, P], Coroutine[Any, Any, T]],
]:
    """Declares an operation that changes something; `hidden` names arguments that are secrets."""
    declared = Operation(name, role, scope, True, True, frozenset(hidden))

    def declare(
        method: Callable[Concatenate[S, Caller, P], Awaitable[Changed[T]]],
    ) -> Callable[Concatenate[S, Caller, P], Coroutine[Any, Any, T]]:
        signature = inspect.signature(method)

        @wraps(method)
        async def run(self: S, caller: Caller, *args: P.args, **kwargs: P.kwargs) -> T:
            asked = _arguments(signature, self, caller, args, kwargs)
            await _authorise(self.audit_log, declared, caller, asked)
            entry = await self.audit_log.begin(declared, caller, asked)
            try:
                done = await method(self, caller, *args, **kwargs)
            except PenstockError as error:
                await self.audit_log.fail(entry, str(error))
                raise
            except BaseException as error:
                await self.audit_log.fail(entry, f"interrupted: {type(error).__name__}")
                raise
            await self.audit_log.finish(entry, done.before, done.after, done.problem)
            return done.result

        run.operation = declared  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return declare


def operations_of(service: type[Service]) -> Iterator[tuple[str, Operation]]:
    """The operations of a service by the names of their methods."""
    for name, member in inspect.getmembers(service, inspect.iscoroutinefunction):
        declared = getattr(member, "operation", None)
        if isinstance(declared, Operation):
            yield name, declared


def _arguments(
    signature: inspect.Signature, self: object, caller: Caller, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, object]:
    bound = signature.bind(self, caller, *args, **kwargs)
    bound.apply_defaults()
    return dict(list(bound.arguments.items())[2:])


async def _authorise(audit: AuditLog, declared: Operation, caller: Caller, asked: Mapping[str, object]) -> None:
    held = role_for(declared, caller, asked)
    if held.covers(declared.role):
        return
    await audit.refuse(declared, caller, asked)
    on = asked.get("topic") or asked.get("group") or ""
    what = f"{declared.name} on {on}" if on else declared.name
    raise RefusedError(
        f"{what} needs the role {declared.role.value}, and you have {held.value}; nothing was done. "
        "An admin can change your role"
    )


def role_for(declared: Operation, caller: Caller, asked: Mapping[str, object]) -> Role:
    """The caller's role on what an operation is about."""
    cluster = str(asked.get("cluster", ""))
    match declared.scope:
        case Scope.TOPIC:
            return caller.role_on_topic(cluster, str(asked["topic"]))
        case Scope.GROUP:
            return caller.role_on_group(cluster, str(asked["group"]))
        case Scope.ANY:
            return caller.highest_role
        case Scope.SELF:
            return Role.ADMIN
        case _:
            return caller.role
