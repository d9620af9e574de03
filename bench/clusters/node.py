"""One process of a cluster: started, killed, stopped, and started again on the same storage and ports."""

from __future__ import annotations

import socket
import time

from bench.client.driver import endpoint
from bench.servers.process import Launch, ServerError, ServerProcess

START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
_LOOK_S = 0.02


class Node:
    """A process that may come and go."""

    def __init__(self, name: str, launch: Launch) -> None:
        self.name = name
        self._launch = launch
        self._process: ServerProcess | None = None

    @property
    def address(self) -> str:
        return self._launch.address

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._process is None else (self._process.pid,)

    def start(self) -> None:
        self._process = ServerProcess(self._launch)

    def wait_until_listening(self) -> None:
        """Returns when its port takes connections; raises ServerError if it has ended or does not come up."""
        if self._process is None:
            raise ServerError(f"{self.name} was not started")
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self._process.check()
            except ServerError as error:
                raise ServerError(f"{self.name}: {error}") from None
            try:
                socket.create_connection(endpoint(self.address), 1).close()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ServerError(f"{self.name} does not take connections: {error}") from None
                time.sleep(_LOOK_S)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self) -> None:
        """In an orderly way; returns when the process is gone. Stopping twice is allowed."""
        if self._process is not None:
            self._process.stop(STOP_LIMIT_S)
            self._process = None
