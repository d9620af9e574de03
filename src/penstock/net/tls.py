"""TLS under a connection: the same calls as those of a plain socket (`transport`).

OpenSSL encrypts and decrypts in memory, and the socket is read and written in large pieces: that takes fewer system
calls than OpenSSL on the socket itself (`docs/decisions/0008-tls.md`).

Rules:
- The handshake happens inside `receive_into` and `send`, a step whenever the socket is ready; until it is over nothing
  is received or sent.
- Bytes may have been received from the socket and not be decrypted yet. `has_buffered` says so, and the connection
  reads again before it waits.
- A part is sent when all that it was encrypted to is; until then it stays in `unsent`.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any, NamedTuple, cast

from penstock.config.security import SecuritySettings
from penstock.errors import ConfigError
from penstock.parts import Part, read_part, size_of
from penstock.security.principal_mapping import distinguished_name

_SEND_BYTES_A_TURN = 1 << 20
"""So that one fast reader does not keep the others waiting: encryption costs time here, not in the kernel."""
_PIECE_BYTES = 128 << 10
"""So much is encrypted and sent with one call."""
_RECEIVED_BYTES = 256 << 10
"""So much is received with one call."""
_HTTP = ""
"""The port for health and metrics is no listener that could be named: what is said of all others is for it too."""
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption. Those of TLS 1.3 are all good."""


class TlsTransport:
    """A non-blocking socket with TLS."""

    def __init__(
        self,
        sock: socket,
        contexts: TlsContexts,
        listener: str,
        on_name: Callable[[str | None], None] = lambda name: None,
    ) -> None:
        """`on_name` is called with the name of the client's certificate, None if it has shown none; an OSError of it
        fails the handshake.
        """
        self._on_name = on_name
        self._sock = sock
        self._fd = sock.fileno()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = contexts.server(listener).wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._space = contexts.space
        self._encrypted = memoryview(b"")
        """What the socket has not taken yet."""
        self._begun: _Piece | None = None
        """What that was before."""
        self._sent = 0
        """Bytes of the first part that are gone already."""
        self.is_established = False
        self.failure: str | None = None
        self.wants_write = False
        self.unsent: deque[Part] = deque()

    def fileno(self) -> int:
        return self._fd

    @property
    def has_buffered(self) -> bool:
        return self._incoming.pending > 0 or self._tls.pending() > 0

    def receive_into(self, space: memoryview) -> int | None:
        received = 0
        try:
            # A call gives one TLS record of 16 KiB at most: many make one turn.
            while received < len(space):
                if not (self.is_established or self._shake_hands()):
                    return 0
                try:
                    # Typed as bytes, which it gives if it is given no buffer.
                    count = cast(int, self._tls.read(len(space) - received, space[received:]))
                except ssl.SSLWantReadError:
                    if not self._receive():
                        return received
                else:
                    received += count
                    if not count:
                        return received
        except (BlockingIOError, InterruptedError):
            return received or None
        except OSError as error:
            # A failed handshake, a broken record, a client that is gone. Send it the alert, if it still listens.
            self.failure = reason_of(error)
            with suppress(OSError):
                self._flush()
            return received
        return received

    def send(self) -> None:
        allowed = _SEND_BYTES_A_TURN
        try:
            self._flush()
            if not (self.is_established or self._shake_hands()):
                raise ConnectionResetError("the client has closed the connection")
            while allowed > 0 and self.unsent:
                self._begun = self._next_piece()
                self._tls.write(self._begun.content)
                allowed -= len(self._begun.content)
                self._flush()
        except (BlockingIOError, InterruptedError):
            pass

    def close(self) -> None:
        self.unsent.clear()
        self._sock.close()

    def _shake_hands(self) -> bool:
        """False if the client has closed the connection; BlockingIOError if the socket is not ready to go on."""
        while not self.is_established:
            try:
                self._tls.do_handshake()
                self._on_name(self._client_name())
                self.is_established = True
            except ssl.SSLWantReadError:
                self._flush_handshake()
                if not self._receive():
                    return False
        self._flush_handshake()
        return True

    def _client_name(self) -> str | None:
        certificate = self._tls.getpeercert()
        # Typed for any field of a certificate; the subject has names in it.
        subject = cast(Any, certificate.get("subject")) if certificate else None
        return None if subject is None else distinguished_name(subject)

    def _flush_handshake(self) -> None:
        self.wants_write = True
        self._flush()
        self.wants_write = False

    def _receive(self) -> int:
        """Gives OpenSSL what the socket has; how much that was, BlockingIOError if there is nothing now."""
        count = self._sock.recv_into(self._space)
        self._incoming.write(self._space[:count])
        return count

    def _flush(self) -> None:
        """Sends what is encrypted; BlockingIOError if the socket does not take all of it."""
        while self._encrypted or self._outgoing.pending:
            if not self._encrypted:
                self._encrypted = memoryview(self._outgoing.read())
            self._encrypted = self._encrypted[self._sock.send(self._encrypted) :]
        begun, self._begun = self._begun, None
        if begun is not None:
            for _ in range(begun.parts):
                self.unsent.popleft()
            self._sent = begun.sent

    def _next_piece(self) -> _Piece:
        """The next bytes: small parts together, large ones piece by piece."""
        contents: list[bytes] = []
        room, sent, parts = _PIECE_BYTES, self._sent, 0
        for part in self.unsent:
            size = size_of((part,))
            content = read_part(part, sent, min(room, size - sent))
            if len(content) < min(room, size - sent):
                raise OSError("a file ended while it was being sent")
            contents.append(content)
            room -= len(content)
            sent += len(content)
            if sent < size:
                break
            parts, sent = parts + 1, 0
            if room <= 0:
                break
        return _Piece(contents[0] if len(contents) == 1 else b"".join(contents), parts, sent)


class _Piece(NamedTuple):
    """What is encrypted and sent in one go."""

    content: bytes
    parts: int
    """How many parts it ends."""
    sent: int
    """Bytes of the part behind those that are in it."""


class TlsContexts:
    """The certificates of a broker, read from files and again when these change."""

    def __init__(self, settings: SecuritySettings) -> None:
        self._settings = settings
        self.space = memoryview(bytearray(_RECEIVED_BYTES))
        """What sockets are read into; nothing stays in it."""
        self._stamp = self._read_stamp()
        self._servers = self._new_server_contexts()
        self.client = self._new_client_context()

    def server(self, listener: str) -> ssl.SSLContext:
        """For the clients of a listener."""
        return self._servers[self._settings.client_certificates.of(listener)]

    def reload(self, *, is_forced: bool = False) -> bool:
        """Reads the files again if they have changed; whether new connections use something else from now on.

        Raises ConfigError, and goes on with what it has, if the files cannot be used.
        """
        stamp = self._read_stamp()
        if stamp == self._stamp and not is_forced:
            return False
        servers, client = self._new_server_contexts(), self._new_client_context()
        self._stamp, self._servers, self.client = stamp, servers, client
        return True

    def new_http_context(self) -> ssl.SSLContext:
        """For an HTTP server, which keeps its context for good: each handshake takes the certificate of now."""

        def use_current(handshake: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
            handshake.context = self.server(_HTTP)

        context = self._new_server_context(self._settings.client_certificates.of(_HTTP))
        context.sni_callback = use_current
        return context

    def _new_server_contexts(self) -> dict[str, ssl.SSLContext]:
        """By what clients have to show."""
        words = {word for _, word in self._settings.client_certificates} | {"none"}
        return {word: self._new_server_context(word) for word in words}

    def _new_server_context(self, client_certificates: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._configure(context)
        required = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
        context.verify_mode = required[client_certificates]
        # A session ticket would have to be shared by brokers; clients connect seldom.
        context.num_tickets = 0
        return context

    def _new_client_context(self) -> ssl.SSLContext:
        """For connections to other brokers: checks their name, and shows them this broker's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._configure(context)
        return context

    def _configure(self, context: ssl.SSLContext) -> None:
        settings = self._settings
        versions = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
        context.minimum_version = versions[settings.min_tls_version]
        context.set_ciphers(_CIPHERS)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        assert settings.certificate_file is not None and settings.key_file is not None
        password = None if settings.key_password_file is None else _line_of(settings.key_password_file)
        try:
            context.load_cert_chain(settings.certificate_file, settings.key_file, password or "")
        except OSError as error:
            raise ConfigError(
                f"security.certificate_file = '{settings.certificate_file}', security.key_file = "
                f"'{settings.key_file}': cannot be used: {reason_of(error)}"
            ) from None
        try:
            if settings.ca_file is not None:
                context.load_verify_locations(settings.ca_file)
            else:
                context.load_default_certs()
        except OSError as error:
            raise ConfigError(f"security.ca_file = '{settings.ca_file}': cannot be used: {reason_of(error)}") from None

    def _read_stamp(self) -> tuple[object, ...]:
        """Changes when a file changes."""
        settings = self._settings
        files = (settings.certificate_file, settings.key_file, settings.key_password_file, settings.ca_file)
        return tuple(None if file is None else _stamp_of(file) for file in files)


def _stamp_of(file: Path) -> object:
    try:
        status = file.stat()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {reason_of(error)}") from None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _line_of(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"security.key_password_file = '{file}' cannot be read: {error}") from None


def reason_of(error: OSError) -> str:
    """The reason without OpenSSL's numbers and source lines, which do not help an operator."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
