"""Ctrl-C as a flag to check, where an exception would be lost.

confluent-kafka's `consume` and `flush` can swallow a KeyboardInterrupt that arrives around one of our callbacks, and
then fail with a SystemError. So the handler only sets a flag.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Interrupt:
    """Whether Ctrl-C was pressed inside `watch`."""

    def __init__(self) -> None:
        self.asked = False
        self._waiting = False

    def note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._waiting:
            raise KeyboardInterrupt

    def letting(self, values: Iterable[T]) -> Iterator[T]:
        """The values; Ctrl-C raises while waiting for the next one, because the loop cannot check the flag then."""
        waited_for = iter(values)
        while True:
            self._waiting = True
            try:
                value = next(waited_for)
            except StopIteration:
                return
            finally:
                self._waiting = False
            yield value


@contextmanager
def watch() -> Iterator[Interrupt]:
    """Sets a flag on Ctrl-C and raises on leaving: the caller's loop has to check the flag and end."""
    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt.note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupt.asked:
        raise KeyboardInterrupt
