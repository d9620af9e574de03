"""What routes are handed: the console and the caller, whom the guard has found."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from penstock.console.console import Console
from penstock.console.errors import UnauthenticatedError
from penstock.console.security.roles import Caller


def console_of(request: Request) -> Console:
    found = request.app.state.console
    assert isinstance(found, Console)
    return found


def caller_of(request: Request) -> Caller:
    """The guard lets nothing pass without one; this is for routes that it takes for public."""
    found = getattr(request.state, "caller", None)
    if not isinstance(found, Caller):
        raise UnauthenticatedError("sign in first; nothing was done")
    return found


TheConsole = Annotated[Console, Depends(console_of)]
TheCaller = Annotated[Caller, Depends(caller_of)]
