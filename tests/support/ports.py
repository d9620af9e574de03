"""Ports for servers that must be found at the same place when they are started again.

They lie below those that the kernel gives to whoever does not ask for a port of his own: one of these would be taken,
now and then, by the outgoing connection of somebody else while its server is down. Each worker of a test run has ports
of its own, and gives each of them out once in a while.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket

_FIRST, _WORKERS, _EACH = 10_000, 6, 3_600


class _Ports:
    def __init__(self) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        first = _FIRST + int(worker) % _WORKERS * _EACH
        self._range = range(first, first + _EACH)
        # Another test run may go on beside this one.
        self._next = random.randrange(first, first + _EACH)

    def take(self, count: int) -> int:
        """The first of so many ports in a row that nobody listens on."""
        for _ in range(_EACH):
            first = self._next if self._next + count <= self._range.stop else self._range.start
            self._next = first + count
            if _are_free(range(first, first + count)):
                return first
        raise AssertionError("no ports are free")


_ports = _Ports()


def first_of_free_ports(count: int) -> int:
    """For brokers that count up from a first one."""
    return _ports.take(count)


def free_ports(count: int) -> list[int]:
    first = _ports.take(count)
    return list(range(first, first + count))


def _are_free(ports: range) -> bool:
    with contextlib.ExitStack() as held:
        try:
            for port in ports:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
        return True
