"""Notifications to a service manager such as systemd: ready, stopping, alive."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

from penstock.clock import Clock
from penstock.logs import fields

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0


class ServiceManager:
    """The service manager that started this process, if it wants notifications."""

    def __init__(self, address: str | None, watchdog_ms: float | None, clock: Clock) -> None:
        """`watchdog_ms`: we have to report within this time, again and again, that we are alive."""
        self._address = address
        # Twice within the time: a report that comes a little late is no reason for a restart.
        self._interval_ms = None if watchdog_ms is None else watchdog_ms / 2
        self._clock = clock
        self._told_ms = float("-inf")
        self._is_ready = False
        self._has_failed = False

    @classmethod
    def of_environment(cls, environment: MutableMapping[str, str], clock: Clock) -> ServiceManager:
        """Takes the variables out: processes that we start must not speak for us."""
        address = environment.pop("NOTIFY_SOCKET", None)
        watchdog_us, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        is_watched = watchdog_us.isdecimal() and int(watchdog_us) > 0 and pid in ("", str(os.getpid()))
        return cls(address or None, int(watchdog_us) / 1000 if is_watched else None, clock)

    def ready(self, status: str) -> None:
        """Everything has started and serves; `status` is one line that `systemctl status` shows."""
        self._tell(f"READY=1\nSTATUS={status}", _PATIENCE_S)
        self._is_ready = True

    def stopping(self) -> None:
        self._tell("STOPPING=1\nSTATUS=stopping", _PATIENCE_S)

    def alive(self) -> None:
        """To be called often; most calls do nothing. Before the broker is ready no watchdog waits for it."""
        if self._interval_ms is None or not self._is_ready:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms >= self._interval_ms:
            self._told_ms = now_ms
            self._tell("WATCHDOG=1", 0.0)

    def _tell(self, message: str, patience_s: float) -> None:
        """The socket holds a few messages: a message that must arrive waits for room, a repeated one does not."""
        if self._address is None:
            return
        # An address that begins with @ is in Linux's abstract namespace.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
                end.settimeout(patience_s)
                end.sendto(message.encode(), address)
        except OSError as error:
            if not self._has_failed:
                log.warning("cannot notify the service manager", extra=fields(socket=self._address, error=str(error)))
            self._has_failed = True
