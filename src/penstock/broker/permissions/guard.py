"""What a guard is, and the two that most calls have: for the whole request, or for each thing that it names.

A guard stands before a handler. It takes out of a request what the caller may not do, answers that itself with Kafka's
error codes, gives the rest to the handler, and takes out of the answer what the caller may not see. So handlers know
nothing of permissions, and a broker without an authorizer has no guards. Rules:

- What is denied is answered the same whether it exists or not.
- A request of which nothing is left does not reach its handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock.broker.permissions.access import Access
from penstock.broker.requests.context import RequestContext
from penstock.errors import Code
from penstock.security.acls import CLUSTER_NAME, Operation, ResourceType

Handler = Callable[[Any, RequestContext], Awaitable[Any]]
Guard = Callable[[Any, RequestContext, Access, Handler], Awaitable[Any]]


class Need(NamedTuple):
    """An operation on a resource of some type."""

    operation: Operation
    type: ResourceType

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.type.name}"


async def unguarded(request: Any, context: RequestContext, access: Access, handler: Handler) -> Any:
    """For calls that everyone may make, and those whose handlers ask themselves."""
    return await handler(request, context)


@dataclass(frozen=True, slots=True)
class WholeRequest:
    """All of the request, or nothing: the first need that is not met decides the code."""

    needs: Callable[[Any], tuple[tuple[Need, str], ...]]
    """Of a request, with the names of the resources."""
    refuse: Callable[[Any, RequestContext, Code], Any]

    async def __call__(self, request: Any, context: RequestContext, access: Access, handler: Handler) -> Any:
        for (operation, type_), name in self.needs(request):
            code = access.refusal(operation, type_, name)
            if code is not Code.NONE:
                return self.refuse(request, context, code)
        return await handler(request, context)


def on_cluster(operation: Operation, refuse: Callable[[Any, RequestContext, Code], Any]) -> WholeRequest:
    needs = ((Need(operation, ResourceType.CLUSTER), CLUSTER_NAME),)
    return WholeRequest(lambda request: needs, refuse)


@dataclass(frozen=True, slots=True)
class EachItem:
    """Each item of a list has its own outcome."""

    need: Need
    items: str
    """The field of the request."""
    name: Callable[[Any], str]
    """Of the resource that an item names."""
    results: str
    """The field of the response."""
    refuse: Callable[[Any, Code], Any]
    """The result of an item that is denied."""
    response: Callable[..., Any]

    async def __call__(self, request: Any, context: RequestContext, access: Access, handler: Handler) -> Any:
        allowed, denied = [], []
        operation, type_ = self.need
        async for item in context.work.over(getattr(request, self.items)):
            code = access.refusal(operation, type_, self.name(item))
            if code is Code.NONE:
                allowed.append(item)
            else:
                denied.append(self.refuse(item, code))
        if not denied:
            return await handler(request, context)
        if not allowed:
            return self.response(**{self.results: tuple(denied)})
        response = await handler(replace(request, **{self.items: tuple(allowed)}), context)
        return replace(response, **{self.results: (*getattr(response, self.results), *denied)})
