"""Signing in and out: a plain form, because the pages need the guarded socket.

A one-time token comes in the address that the terminal shows. Opening the address only fills the form, which submits
itself: a preview of the link does not use the token up.
"""

from __future__ import annotations

import html
from typing import Annotated
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from penstock.console.api.dependencies import console_of
from penstock.console.console import Console
from penstock.console.errors import BusyError
from penstock.console.security.guard import HEALTH, LOGIN, OIDC, cookie_name, cookie_of
from penstock.console.state.audit import Outcome
from penstock.console.state.sessions import digest
from penstock.console.state.users import FIRST_USER, MAX_PASSWORD

router = APIRouter(include_in_schema=False)
_MAX_FORM_BYTES = 16_384


@router.get(HEALTH)
async def health() -> dict[str, str]:
    return {"status": "ok"}


@router.get(LOGIN)
async def form(request: Request, next: Annotated[str, Query()] = "/", token: Annotated[str, Query()] = "") -> Response:
    if getattr(request.state, "caller", None) is not None and not token:
        return RedirectResponse(_prefixed(request, safe_target(next)), 303)
    return HTMLResponse(login_page(request, console_of(request), next=next, token=token[:200]))


@router.post(LOGIN)
async def sign_in(request: Request) -> Response:
    console = console_of(request)
    body = await request.body()
    if len(body) > _MAX_FORM_BYTES:
        return HTMLResponse(login_page(request, console, problem="The form is too large."), 413)
    form = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
    if "token" not in form and not console.takes_passwords:
        problem = "Passwords are switched off at this console; sign in through the provider."
        return HTMLResponse(login_page(request, console, problem=problem), 403)
    name, target = form.get("name", "")[:128], safe_target(form.get("next", "/"))
    address = str(request.state.address)
    try:
        user = await _checked(console, form, name, address)
    except BusyError as error:
        if console.login_limits.is_first_refusal(address):
            await console.audit.sign_in(name, address, Outcome.REFUSED, str(error))
        return HTMLResponse(login_page(request, console, problem=f"{error}.", next=target), 429, {"retry-after": "60"})
    if user is None:
        return HTMLResponse(
            login_page(
                request,
                console,
                problem="The name or the password is wrong, or the link was used before.",
                next=target,
            ),
            401,
        )
    return await opened_session(request, console, user, target)


async def opened_session(request: Request, console: Console, user: str, target: str) -> RedirectResponse:
    """Into the console with a session that is new, whatever cookie came with the request."""
    old = cookie_of({"cookie": request.headers.get("cookie", "")}, cookie_name(console.settings.security))
    if old:
        await console.sessions.end(digest(old))
    made = await console.sessions.open(user, str(request.state.address), request.headers.get("user-agent", ""))
    response = RedirectResponse(_prefixed(request, target), 303)
    response.set_cookie(
        cookie_name(console.settings.security),
        made.cookie,
        max_age=console.settings.security.session_max_ms // 1000,
        path="/",
        httponly=True,
        samesite="lax",
        secure=console.settings.security.is_secure_cookie,
    )
    return response


async def _checked(console: Console, form: dict[str, str], name: str, address: str) -> str | None:
    """The name of the user that may come in."""
    token = form.get("token", "")
    who = FIRST_USER if token else name
    console.login_limits.check(who, address)
    if token:
        user = await console.users.find(FIRST_USER) if console.use_one_time_token(token) else None
        user = None if user is None or user.is_disabled else user
    else:
        user = await console.users.check_password(name, form.get("password", "")[:MAX_PASSWORD])
    how = "one-time" if token else "password"
    if user is None:
        console.login_limits.failed(who, address)
        await console.audit.sign_in(who, address, Outcome.FAILED, "wrong name, password or token", how)
        return None
    console.login_limits.succeeded(user.name)
    await console.audit.sign_in(user.name, address, Outcome.DONE, "", how)
    return user.name


def safe_target(target: str) -> str:
    """Where to go after the login: a path of the console, never another host."""
    parts = urlsplit(target)
    is_own = not parts.scheme and not parts.netloc and target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_own and target.isprintable() and "\\" not in target else "/"


def login_page(request: Request, console: Console, *, problem: str = "", next: str = "/", token: str = "") -> str:
    """The form as HTML; everything that came from outside is escaped."""
    prefix = html.escape(str(request.scope.get("root_path", "")))
    nonce = html.escape(str(request.state.nonce))
    told = f'<p class="login-problem" role="alert">{html.escape(problem)}</p>' if problem else ""
    hidden = f'<input type="hidden" name="next" value="{html.escape(safe_target(next))}">'
    if token:
        fields = f'{hidden}<input type="hidden" name="token" value="{html.escape(token)}">'
        script = f'<script nonce="{nonce}">document.forms[0].submit()</script>'
    elif not console.takes_passwords:
        fields = script = ""
    else:
        fields = f"""{hidden}
<label>Name<input name="name" autocomplete="username" autofocus required maxlength="128"></label>
<label>Password
<input name="password" type="password" autocomplete="current-password" required maxlength="512"></label>"""
        script = ""
    form = f'<form method="post" action="{prefix}{LOGIN}">{fields}<button type="submit">Sign in</button></form>'
    provider = ""
    if console.provider is not None and not token:
        provider = _provider_link(prefix, console.provider.settings.label, next)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in · Penstock</title>
<link rel="stylesheet" href="{prefix}/static/login.css"></head>
<body class="login"><main><h1>Penstock</h1>{told}
{provider}{form if fields else ""}
<p class="login-hint">The terminal in which the console was started shows an address that signs you in once.</p>
</main>{script}</body></html>"""


def _provider_link(prefix: str, label: str, next: str) -> str:
    target = safe_target(next)
    address = f"{prefix}{OIDC}" + ("" if target == "/" else f"?next={quote(target, safe='')}")
    return f'<a class="login-provider" href="{address}">Sign in with {html.escape(label)}</a>'


def _prefixed(request: Request, target: str) -> str:
    return f"{request.scope.get('root_path', '')}{target}"
