"""TLS under a connection, without a broker: every byte arrives, however parts and records are cut."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.security import SecuritySettings
from penstock.errors import ConfigError
from penstock.net.tls import TlsContexts, TlsTransport
from support.certificates import Authority


class RangeOfFile:
    """A part in a file."""

    def __init__(self, file: IO[bytes], position: int, size: int) -> None:
        self._file = file
        self.position = position
        self.size = size

    def fileno(self) -> int:
        return self._file.fileno()

    def read(self, at: int = 0, size: int | None = None) -> bytes:
        self._file.seek(self.position + at)
        return self._file.read(self.size - at if size is None else size)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, SecuritySettings]:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    certificate, key = authority.sign("broker")
    return authority, SecuritySettings(certificate_file=certificate, key_file=key, ca_file=authority.file)


class Client(threading.Thread):
    """The other end: reads until the end, echoing nothing."""

    def __init__(self, sock: socket.socket, authority: Authority, sent: bytes) -> None:
        super().__init__(daemon=True)
        context = ssl.create_default_context(cafile=str(authority.file))
        self._context, self._sock = context, sock
        self._sent = sent
        self.received = bytearray()
        self.start()

    def run(self) -> None:
        with self._context.wrap_socket(self._sock, server_hostname="127.0.0.1") as secured:
            secured.sendall(self._sent)
            while chunk := secured.recv(10_000):
                self.received += chunk


def ready(transport: TlsTransport, *, to_write: bool) -> None:
    assert any(select.select([transport], [transport] if to_write else [], [], 10))


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.tuples(st.booleans(), st.integers(0, 300_000)), min_size=1, max_size=6))
def test_parts_arrive_whole_and_in_order(
    files: tuple[Authority, SecuritySettings], sizes: list[tuple[bool, int]]
) -> None:
    authority, security = files
    here, there = socket.socketpair()
    here.setblocking(False)
    transport = TlsTransport(here, TlsContexts(security), "SSL")
    client = Client(there, authority, b"")
    expected = b""
    with TemporaryFile() as file:
        for number, (is_in_file, size) in enumerate(sizes):
            content = bytes([number + 1]) * size
            if is_in_file:
                position = file.seek(0, 2)
                file.write(content)
                transport.unsent.append(RangeOfFile(file, position, size))
            else:
                transport.unsent.append(content)
            expected += content
        while transport.unsent:
            transport.send()
            if transport.unsent:
                ready(transport, to_write=transport.is_established or transport.wants_write)
        transport.close()
    client.join(10)
    assert bytes(client.received) == expected


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 200_000), space=st.integers(1, 70_000))
def test_what_does_not_fit_is_received_later(files: tuple[Authority, SecuritySettings], size: int, space: int) -> None:
    authority, security = files
    here, there = socket.socketpair()
    here.setblocking(False)
    transport = TlsTransport(here, TlsContexts(security), "SSL")
    sent = bytes(number % 251 for number in range(size))
    client = Client(there, authority, sent)
    received = bytearray()
    while len(received) < size:
        buffer = bytearray(space)
        count = transport.receive_into(memoryview(buffer))
        if count is None:
            ready(transport, to_write=transport.wants_write)
            continue
        assert count > 0
        received += buffer[:count]
    assert bytes(received) == sent
    transport.close()
    client.join(10)


def test_files_that_cannot_be_used_are_named(files: tuple[Authority, SecuritySettings], tmp_path: Path) -> None:
    authority, security = files
    with pytest.raises(ConfigError, match=r"nowhere.pem cannot be read"):
        TlsContexts(replace(security, certificate_file=tmp_path / "nowhere.pem"))
    _, key_of_another = authority.sign("another")
    with pytest.raises(ConfigError, match=r"security.key_file = .*key values mismatch"):
        TlsContexts(replace(security, key_file=key_of_another))
    (tmp_path / "text").write_text("no certificates here")
    with pytest.raises(ConfigError, match=r"security.ca_file = .*cannot be used"):
        TlsContexts(replace(security, ca_file=tmp_path / "text"))
    locked, locked_key = authority.sign("locked", password="secret")
    with pytest.raises(ConfigError, match="cannot be used"):
        TlsContexts(replace(security, certificate_file=locked, key_file=locked_key))
