"""Ports that follow each other, for brokers that count up from a first one."""

from __future__ import annotations

import contextlib
import random
import socket

# Below those that the kernel gives to whoever does not ask for a port of his own.
_PORTS = range(20_000, 30_000)
_TRIES = 1_000


def first_of_free_ports(count: int) -> int:
    """Drawn, because other tests draw at the same time."""
    for _ in range(_TRIES):
        first = random.randrange(_PORTS.start, _PORTS.stop - count)
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise AssertionError("no ports are free")
