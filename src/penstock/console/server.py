"""Runs the console as a web server until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn

from penstock.console.app import InstallPages, create_app
from penstock.console.console import Console
from penstock.console.settings import ConsoleSettings
from penstock.errors import ConfigError
from penstock.logs import fields

logger = logging.getLogger(__name__)

_STOP_S = 5
_MAX_CONNECTIONS = 1000


def serve(settings: ConsoleSettings, on_ready: Callable[[str, str], None]) -> int:
    """The exit status; `on_ready` gets the address, and the address that signs in once."""
    return asyncio.run(_serve(settings, on_ready))


async def _serve(settings: ConsoleSettings, on_ready: Callable[[str, str], None]) -> int:
    listener = _listener(settings)
    console = Console(settings)
    app = create_app(console, pages())
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        # The guard knows clients by the address of the connection; --origin names a proxy.
        proxy_headers=bool(settings.security.origins),
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_S,
        h11_max_incomplete_event_size=64 << 10,
    )
    server = _Server(config, lambda: on_ready(*_addresses(settings, listener, console)))
    await server.serve(sockets=[listener])
    return 0 if server.started else 1


class _Server(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()


def pages() -> InstallPages | None:
    """The pages; None where only the API is installed."""
    try:
        from penstock.console.ui import install
    except ImportError as error:
        logger.warning("the pages of the console are missing; only the API is served", extra=fields(reason=str(error)))
        return None
    return install


def _addresses(settings: ConsoleSettings, listener: socket.socket, console: Console) -> tuple[str, str]:
    port = listener.getsockname()[1]
    host = "127.0.0.1" if settings.host in ("", "0.0.0.0", "::") else settings.host
    shown = f"[{host}]" if ":" in host else host
    address = settings.security.origins[0] if settings.security.origins else f"http://{shown}:{port}"
    return address, f"{address}/login?token={console.new_one_time_token()}"


def _listener(settings: ConsoleSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the console cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port"
        ) from None
    listener.listen(512)
    listener.setblocking(False)
    return listener
