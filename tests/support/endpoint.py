"""An HTTP endpoint in the test: keeps every request, and answers as the test wants."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Posted:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    """By name in small letters."""
    body: bytes
    connection: tuple[str, int]


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


Answering = Callable[[Posted], Answer | None]
"""None: no answer ever comes."""


class Endpoint:
    """Listens on a free loopback port."""

    def __init__(self, answering: Answering, tls: ssl.SSLContext | None = None) -> None:
        self.answering = answering
        self.requests: list[Posted] = []
        self.closing = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                body = self.rfile.read(length)
                if len(body) < length:
                    # The sender has died in the middle of it.
                    self.close_connection = True
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                posted = Posted(self.path, headers, body, self.client_address)
                endpoint.requests.append(posted)
                answer = endpoint.answering(posted)
                if answer is None:
                    endpoint.closing.wait()
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def posted(self, body: bytes) -> list[Posted]:
        return [each for each in self.requests if each.body == body]

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def endpoint(answering: Answering, tls: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    started = Endpoint(answering, tls)
    try:
        yield started
    finally:
        started.close()
