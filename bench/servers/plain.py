"""A server that does nothing but receive and send: what sockets alone cost, in the language of the broker.

A client says in its first line how large its requests and their answers are. Small answers come from memory, large ones
from a file with `sendfile`, as a broker sends what is stored. Run as a process of its own, it prints its address.

A client may also ask it to work: for each request it then runs some code of the standard library, and writes a large
one to a file. On a busy machine interpreted code, copies and system calls become dearer by different factors; whoever
compares a broker with this server wants them mixed in about the same way.
"""

from __future__ import annotations

import email
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TMPFS = Path("/dev/shm")
_RECEIVE_BYTES = 1 << 20
_FILE_FROM_BYTES = 4096
_STORED_ANSWERS = 32
_KEPT_BYTES = 64 << 20
_MAIL = b"From: a@broker.example\r\nTo: b@broker.example\r\nSubject: order\r\nMessage-Id: <1@x>\r\n\r\nbody"


@dataclass(frozen=True, slots=True)
class Plain:
    """One that runs."""

    address: str
    pid: int


@contextmanager
def plain_server() -> Iterator[Plain]:
    """Runs until the end of the block."""
    command = [sys.executable, "-m", "bench.servers.plain"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Plain(process.stdout.readline().strip(), process.pid)
        finally:
            process.kill()


def introduction(request_bytes: int, answer_bytes: int, *, works: bool = False) -> bytes:
    """What a client says first."""
    return f"{request_bytes} {answer_bytes} {works:d}\n".encode()


def serve(listener: socket.socket) -> None:
    """One client after the other."""
    place = TMPFS if TMPFS.is_dir() else None
    with tempfile.TemporaryFile(dir=place) as stored, tempfile.TemporaryFile(dir=place) as written:
        while True:
            link, _ = listener.accept()
            with link:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _answer(link, stored, written)


def _answer(link: socket.socket, stored: IO[bytes], written: IO[bytes]) -> None:
    first = bytearray()
    while not first.endswith(b"\n"):
        first += link.recv(1)
    request_bytes, answer_bytes, works = (int(word) for word in first.split())
    answer = bytes(answer_bytes)
    is_stored = answer_bytes >= _FILE_FROM_BYTES
    if is_stored and os.fstat(stored.fileno()).st_size != answer_bytes * _STORED_ANSWERS:
        stored.truncate(0)
        os.pwrite(stored.fileno(), os.urandom(answer_bytes) * _STORED_ANSWERS, 0)
    buffer = memoryview(bytearray(_RECEIVE_BYTES))
    rest = answered = position = 0
    while received := link.recv_into(buffer):
        if works and request_bytes >= _FILE_FROM_BYTES:
            if position > _KEPT_BYTES:
                position = 0
                os.ftruncate(written.fileno(), 0)
            position += os.pwrite(written.fileno(), buffer[:received], position)
        whole, rest = divmod(rest + received, request_bytes)
        for _ in range(whole if works else 0):
            email.message_from_bytes(_MAIL)
        if not is_stored:
            if whole:
                link.sendall(answer * whole)
            continue
        for _ in range(whole):
            start, sent = answered % _STORED_ANSWERS * answer_bytes, 0
            while sent < answer_bytes:
                sent += os.sendfile(link.fileno(), stored.fileno(), start + sent, answer_bytes - sent)
            answered += 1


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        print(f"{host}:{port}", flush=True)
        serve(listener)


if __name__ == "__main__":
    main()
