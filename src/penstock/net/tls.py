"""TLS under a connection: the same calls as those of a plain socket (`transport`).

OpenSSL works on the socket itself, without memory between the two (`docs/decisions/0008-tls.md` has the measurement).

Rules:
- The handshake happens inside `receive_into` and `send`, a step whenever the socket is ready; until it is over nothing
  is received or sent.
- OpenSSL may hold bytes that it has decrypted and that the socket no longer shows as readable. `has_buffered` says so,
  and the connection reads again before it waits.
- After "not now" the same bytes have to be given to OpenSSL again, so a piece that was begun is kept.
"""

from __future__ import annotations

import ssl
from collections import deque
from pathlib import Path
from socket import socket
from typing import NamedTuple

from penstock.config.security import SecuritySettings
from penstock.errors import ConfigError
from penstock.parts import Part, read_part, size_of

_SEND_BYTES_A_TURN = 1 << 20
"""So that one fast reader does not keep the others waiting: encryption costs time here, not in the kernel."""
_PIECE_BYTES = 128 << 10
"""So much is encrypted and sent with one call."""
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption. Those of TLS 1.3 are all good."""


class TlsTransport:
    """A non-blocking socket with TLS."""

    def __init__(self, sock: socket, context: ssl.SSLContext) -> None:
        self._sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._fd = self._sock.fileno()
        self.is_established = False
        self.failure: str | None = None
        self.wants_write = False
        """The handshake waits until the socket takes bytes."""
        self.unsent: deque[Part] = deque()
        """Parts that `send` sends, in order; the connection appends them."""
        self._sent = 0
        """Bytes of the first of them that are gone already."""
        self._begun: _Piece | None = None
        """What OpenSSL has to be given again."""

    def fileno(self) -> int:
        return self._fd

    @property
    def has_buffered(self) -> bool:
        return self._sock.pending() > 0

    @property
    def peer_certificate(self) -> bytes | None:
        """What the client has shown, checked against the authorities; None if it has shown nothing."""
        return self._sock.getpeercert(binary_form=True)

    def receive_into(self, space: memoryview) -> int | None:
        """How many bytes came: 0 if none will come any more, None if there are none now."""
        received = 0
        try:
            if not self.is_established:
                self._shake_hands()
            # A call gives one TLS record of 16 KiB at most: many make one turn.
            while received < len(space):
                count = self._sock.recv_into(space[received:])
                if count == 0:
                    return received
                received += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError):
            return received or None
        except OSError as error:
            # A failed handshake, a broken record, a client that is gone.
            self.failure = reason_of(error)
            return received
        return received

    def send(self) -> None:
        """Sends until nothing is left, the peer takes no more, or it is the turn of others; OSError if it is gone."""
        allowed = _SEND_BYTES_A_TURN
        try:
            if not self.is_established:
                self._shake_hands()
            while allowed > 0 and self.unsent:
                if self._begun is None:
                    self._begun = self._next_piece()
                # It takes all or nothing.
                allowed -= self._sock.send(self._begun.content)
                for _ in range(self._begun.parts):
                    self.unsent.popleft()
                self._sent, self._begun = self._begun.sent, None
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError):
            pass

    def close(self) -> None:
        self.unsent.clear()
        self._begun = None
        self._sock.close()

    def _shake_hands(self) -> None:
        try:
            self.wants_write = False
            self._sock.do_handshake()
        except ssl.SSLWantWriteError:
            self.wants_write = True
            raise
        self.is_established = True

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
        self._stamp = self._read_stamp()
        self.server = self._new_server_context()
        self.client = self._new_client_context()

    def reload(self, *, is_forced: bool = False) -> bool:
        """Reads the files again if they have changed; whether new connections use something else from now on.

        Raises ConfigError, and goes on with what it has, if the files cannot be used.
        """
        stamp = self._read_stamp()
        if stamp == self._stamp and not is_forced:
            return False
        server, client = self._new_server_context(), self._new_client_context()
        self._stamp, self.server, self.client = stamp, server, client
        return True

    def _new_server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._configure(context)
        required = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
        context.verify_mode = required[self._settings.client_certificates]
        # A session ticket would have to be shared by brokers; clients connect seldom.
        context.num_tickets = 0
        return context

    def _new_client_context(self) -> ssl.SSLContext:
        """For connections to other brokers, who are checked by name, and to whom this one shows its certificate."""
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
    """OpenSSL's numbers and source lines help nobody."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
