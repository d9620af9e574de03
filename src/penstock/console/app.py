"""The console as one ASGI application: headers, gzip, guard, login, API and pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from penstock.console import login
from penstock.console.api import (
    account,
    acls,
    alerts,
    audit,
    brokers,
    cluster_users,
    clusters,
    dead_letters,
    groups,
    lake,
    messages,
    pipeline,
    quotas,
    schemas,
    timers,
    topics,
    transactions,
    users,
)
from penstock.console.api.problems import install_problems, problems
from penstock.console.console import Console
from penstock.console.oidc import routes as oidc
from penstock.console.security.guard import Guard
from penstock.console.security.response_headers import ResponseHeaders

STATIC = Path(__file__).parent / "static"
_GZIP_FROM_BYTES = 1024

InstallPages = Callable[[FastAPI, Console], None]


def create_app(console: Console, install_pages: InstallPages | None = None) -> FastAPI:
    """The application; it starts and closes the console with itself. `install_pages` adds the pages."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await console.start()
        try:
            yield
        finally:
            await console.close()

    app = FastAPI(
        title="Penstock console",
        version=version("penstock"),
        description="Everything that the console's pages do, for scripts. Send a token: `Authorization: Bearer …`.",
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=problems(),
    )
    app.state.console = console
    install_problems(app)
    api = APIRouter()
    for router in (
        account.router,
        clusters.router,
        topics.router,
        topics.meanings_router,
        messages.router,
        messages.search_router,
        schemas.router,
        groups.router,
        timers.router,
        dead_letters.router,
        transactions.router,
        brokers.router,
        cluster_users.router,
        acls.router,
        quotas.router,
        lake.router,
        pipeline.router,
        pipeline.replays_router,
        users.router,
        audit.router,
        alerts.router,
        alerts.jobs_router,
    ):
        api.include_router(router)
    # A router without a prefix FastAPI would make twice: once to look for empty paths.
    app.include_router(api, prefix="/api")
    app.include_router(login.router)
    app.include_router(oidc.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    if install_pages is not None:
        install_pages(app, console)
    # The last one added is the outermost.
    security = console.settings.security
    app.add_middleware(Guard, sessions=console.sessions, settings=security, listen_host=console.settings.host)
    app.add_middleware(GZipMiddleware, minimum_size=_GZIP_FROM_BYTES)
    app.add_middleware(ResponseHeaders, is_https=security.is_secure_cookie)
    return app
