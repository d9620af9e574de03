"""SIGINT and SIGTERM: the first asks for an orderly stop, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Listens from its creation on. Create it in the main thread."""

    def __init__(self, at_once: Callable[[], None] = lambda: None) -> None:
        """`at_once` is called before a second signal ends the process."""
        self.asked = threading.Event()
        """Set by the first signal."""
        self._on_ask: Callable[[], object] = lambda: None
        self._at_once = at_once
        for number in SIGNALS:
            signal.signal(number, self._received)

    def call_when_asked(self, on_ask: Callable[[], object]) -> None:
        """Call it with the first signal, in the main thread between two instructions of whatever runs there."""
        self._on_ask = on_ask
        if self.asked.is_set():
            on_ask()

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.asked.is_set():
            self._at_once()
            os._exit(128 + number)
        self.asked.set()
        self._on_ask()
