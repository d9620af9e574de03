"""/login/oidc: to the provider, back from it, and out of it again. Public: the user has not signed in yet."""

from __future__ import annotations

import logging
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from penstock.console.api.dependencies import console_of
from penstock.console.console import Console
from penstock.console.errors import BusyError, ConsoleError, MissingError
from penstock.console.login import login_page, opened_session, safe_target
from penstock.console.oidc.errors import IdentityError, ProviderError
from penstock.console.oidc.identity import Identity, identity_of
from penstock.console.oidc.login_attempt import LoginAttempt, attempt_of
from penstock.console.oidc.provider import Provider
from penstock.console.security.guard import LOGIN, OIDC, OIDC_CALLBACK, OIDC_LOGOUT, cookie_name, cookie_of
from penstock.console.security.roles import Role
from penstock.console.state.audit import Outcome
from penstock.console.state.users import User
from penstock.errors import PenstockError
from penstock.logs import fields

logger = logging.getLogger(__name__)

router = APIRouter(include_in_schema=False)
_HOW = "oidc"
_MAX_TARGET = 1_000
_KEY = "oidc_attempts"


@router.get(OIDC)
async def begin(request: Request, next: Annotated[str, Query()] = "/") -> Response:
    """To the provider."""
    console = console_of(request)
    try:
        provider = _provider(console)
        console.login_limits.check_address(str(request.state.address))
        target = safe_target(next) if len(next) <= _MAX_TARGET else "/"
        settings = provider.settings
        attempt = LoginAttempt.begin(target, console.clock.now_ms() + settings.attempt_ms)
        address = await provider.authorization_address(attempt, _own_address(request, console, OIDC_CALLBACK))
    except PenstockError as error:
        return _refused(request, console, error)
    response = RedirectResponse(address, 303)
    # Lax: the provider sends the browser back from another site.
    response.set_cookie(
        _attempt_cookie(console),
        attempt.cookie(await _key(console)),
        max_age=settings.attempt_ms // 1000,
        path="/",
        httponly=True,
        samesite="lax",
        secure=console.settings.security.is_secure_cookie,
    )
    return response


@router.get(OIDC_CALLBACK)
async def complete(
    request: Request,
    code: Annotated[str, Query(max_length=4096)] = "",
    state: Annotated[str, Query(max_length=200)] = "",
    error: Annotated[str, Query(max_length=200)] = "",
    iss: Annotated[str | None, Query(max_length=2000)] = None,
) -> Response:
    """Back from the provider."""
    console, address = console_of(request), str(request.state.address)
    name = ""
    try:
        provider = _provider(console)
        console.login_limits.check_address(address)
        cookie = cookie_of({"cookie": request.headers.get("cookie", "")}, _attempt_cookie(console))
        attempt = attempt_of(cookie, await _key(console), state, console.clock.now_ms())
        if error or not code:
            raise IdentityError("the provider did not let you in, or you stopped")
        redirect_uri = _own_address(request, console, OIDC_CALLBACK)
        identity = identity_of(await provider.claims(attempt, code, iss, redirect_uri), provider.settings)
        name = identity.name
        user = await _let_in(console, provider, identity)
    except PenstockError as problem:
        if isinstance(problem, BusyError):
            if console.login_limits.is_first_refusal(address):
                await console.audit.sign_in(name, address, Outcome.REFUSED, str(problem), _HOW)
        else:
            # A provider that is down must not keep an office from its passwords.
            if not isinstance(problem, ProviderError):
                console.login_limits.failed_address(address)
            await console.audit.sign_in(name, address, Outcome.FAILED, str(problem), _HOW)
        return _refused(request, console, problem)
    await console.audit.sign_in(user.name, address, Outcome.DONE, "", _HOW)
    response = await opened_session(request, console, user.name, attempt.target)
    _forget(response, console)
    return response


@router.get(OIDC_LOGOUT)
async def logout(request: Request) -> Response:
    """Signs the user out of the provider too, if the settings say so and it can; the console's session has ended."""
    console = console_of(request)
    back = _own_address(request, console, LOGIN)
    where = None
    try:
        provider = _provider(console)
        if provider.settings.ends_provider_session:
            where = await provider.logout_address(back)
    except PenstockError as error:
        logger.warning("could not have the provider sign a user out", extra=fields(reason=str(error)))
    return RedirectResponse(where or back, 303)


async def _let_in(console: Console, provider: Provider, identity: Identity) -> User:
    issuer = provider.settings.issuer
    if identity.role is Role.NONE:
        await _lock_out(console, issuer, identity)
        raise IdentityError(f"{provider.settings.label} gives {identity.name} no role at this console; ask its admins")
    before, user = await console.users.provide(issuer, identity.subject, identity.name, identity.role)
    console.sessions.forget(user.name)
    if user.is_disabled:
        raise IdentityError("this user is disabled; an admin of the console can enable it")
    if before is None or before.role is not user.role:
        facts = fields(user=user.name, role=user.role.value)
        logger.info("the provider gave a user a role", extra=facts)
    return user


async def _lock_out(console: Console, issuer: str, identity: Identity) -> None:
    """Takes the role and the sessions from a user to whom the provider no longer gives a role."""
    known = await console.users.found_by_identity(issuer, identity.subject)
    if known is not None:
        await console.users.provide(issuer, identity.subject, known.name, Role.NONE)
        await console.sessions.end_all(known.name)
        await console.sessions.remove_tokens_of(known.name)


def _provider(console: Console) -> Provider:
    if console.provider is None:
        raise MissingError("this console has no provider to sign in through; start it with --oidc-file")
    return console.provider


def _refused(request: Request, console: Console, problem: PenstockError) -> Response:
    match problem:
        case ConsoleError():
            status = problem.status
        case IdentityError():
            status = 403
        case _:
            status = 502 if isinstance(problem, ProviderError) else 503
            logger.warning("a login through the provider failed", extra=fields(reason=str(problem)))
    text = str(problem) if status != 503 else "the console's database does not answer; try again"
    page = HTMLResponse(login_page(request, console, problem=f"You are not signed in: {text}."), status)
    _forget(page, console)
    return page


def _forget(response: Response, console: Console) -> None:
    response.delete_cookie(
        _attempt_cookie(console),
        path="/",
        httponly=True,
        samesite="lax",
        secure=console.settings.security.is_secure_cookie,
    )


def _attempt_cookie(console: Console) -> str:
    return f"{cookie_name(console.settings.security)}_attempt"


async def _key(console: Console) -> bytes:
    return (await console.remembered_secret(_KEY)).encode()


def _own_address(request: Request, console: Console, path: str) -> str:
    """As browsers know it: the origin of the proxy, if there is one."""
    host = request.headers.get("host", "").lower()
    origins = console.settings.security.origins
    own = next((each for each in origins if urlsplit(each).netloc.lower() == host), origins[0] if origins else None)
    scheme = "https" if console.settings.security.is_secure_cookie else "http"
    return f"{own or f'{scheme}://{host}'}{request.scope.get('root_path', '')}{path}"
