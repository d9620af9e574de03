"""Stopping by a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second signal has its usual effect.

    Signals reach only the main thread: in other threads nothing sets the event.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        restore()

    for number in SIGNALS:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        restore()
