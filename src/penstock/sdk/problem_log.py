"""Logs problems without flooding: facts in the text, one line per minute.

Applications format their logs themselves, so each line is complete. A problem that lasts (a broker is down) is logged
when it begins, once a minute, and when it is over. The first error of each kind has a traceback.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from penstock.clock import Clock, SystemClock

EVERY_MS = 60_000
"""How often a lasting problem is logged."""
_KINDS = 1000
"""How many kinds of errors to remember; then all are forgotten."""


class OngoingProblem:
    """Something that does not work for a while. Thread-safe."""

    def __init__(
        self,
        log: logging.Logger,
        what: str,
        over: str,
        *,
        clock: Clock | None = None,
        is_explained: Callable[[], bool] = lambda: False,
    ) -> None:
        """Describe a problem.

        Args:
            log: The logger to use.
            what: The text while it lasts.
            over: The text when it is over.
            clock: The clock to use.
            is_explained: Whether a larger problem that is logged elsewhere explains this one; then nothing is logged
                here.
        """
        self._log = log
        self._what = what
        self._over = over
        self._clock = clock or SystemClock()
        self._is_explained = is_explained
        self._lock = threading.Lock()
        self._began_ms: tuple[int, float] | None = None
        """By the wall clock and by the monotonic clock."""
        self._logged_ms: float | None = None

    @property
    def is_on(self) -> bool:
        return self._began_ms is not None

    def report(self, reason: object) -> None:
        """It does not work, again or still."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            if self._began_ms is None:
                self._began_ms = (self._clock.now_ms(), now_ms)
            if self._is_explained() or (self._logged_ms is not None and now_ms - self._logged_ms < EVERY_MS):
                return
            is_first, self._logged_ms = self._logged_ms is None, now_ms
            since_ms, began_ms = self._began_ms
        if is_first:
            self._log.warning("%s: %s", self._what, reason)
        else:
            since = time.strftime("%H:%M:%S", time.gmtime(since_ms / 1000))
            self._log.warning("%s, since %s UTC (%s): %s", self._what, since, _span(now_ms - began_ms), reason)

    def end(self) -> None:
        """It works. Costs nothing if there was no problem."""
        if self._began_ms is None:
            return
        with self._lock:
            began, was_logged = self._began_ms, self._logged_ms is not None
            self._began_ms = self._logged_ms = None
        if began is not None and was_logged:
            self._log.warning("%s, after %s", self._over, _span(self._clock.monotonic_ms() - began[1]))


class SeenErrors:
    """The kinds of errors seen so far: of one type, raised at one line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[tuple[type[BaseException], str, int]] = set()

    def is_new(self, error: BaseException) -> bool:
        """Whether this is the first error of its kind."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        location = ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        with self._lock:
            if (type(error), *location) in self._seen:
                return False
            if len(self._seen) >= _KINDS:
                self._seen.clear()
            self._seen.add((type(error), *location))
            return True


def traceback_of(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """For `exc_info` of a log call: omits the SDK's frames before those of the application."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace):
        trace = trace.tb_next
    return type(error), error, trace


def error_line(error: BaseException) -> str:
    """Type and text on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).startswith("penstock.")


def _span(ms: float) -> str:
    seconds = round(ms / 1000)
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
