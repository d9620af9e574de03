"""Logs when no broker is reachable: the address, the reason, since when, and when it is over.

librdkafka reports each failed connection, but not when it is connected again. So when all brokers are gone for one of a
client's connections, a thread asks for the brokers until one answers.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.sdk.problem_log import OngoingProblem

log = logging.getLogger(__name__)

_ASK_S = 2.0
_PAUSE_S = 1.0
_ALARMING = (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL)
_NO_REASON = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""These errors do not say what is wrong; the error before them does."""
_HOW_LONG = re.compile(r" \(after \d+ms in state \w+[^)]*\)")


class BrokerAvailability:
    """Whether brokers are reachable, for all connections of one client."""

    def __init__(self, bootstrap: str) -> None:
        self._lock = threading.Lock()
        self._bootstrap = bootstrap
        self._reason = ""
        self._is_watching = False
        self._closed = threading.Event()
        self._problem = OngoingProblem(
            log,
            f"no broker is reachable (bootstrap {bootstrap})",
            f"brokers are reachable again (bootstrap {bootstrap})",
        )

    @property
    def is_away(self) -> bool:
        """Whether no broker was reachable at the last check."""
        return self._problem.is_on

    def heard(self, error: KafkaError, settings: Mapping[str, Any]) -> None:
        """Handle an error of librdkafka; called in any thread. `settings` are those of a connection."""
        self._note(error)
        if error.fatal():
            log.warning("connection to the brokers (bootstrap %s) failed: %s", self._bootstrap, error.str())
        else:
            log.debug("broker not reachable: %s", error.str())
        with self._lock:
            if error.code() not in _ALARMING or self._is_watching or self._closed.is_set():
                return
            self._is_watching = True
        thread = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._closed, dict(settings)), name="penstock-broker-watch"
        )
        thread.daemon = True
        thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._closed.set()

    def _note(self, error: KafkaError) -> None:
        if error.code() not in _NO_REASON:
            self._reason = _HOW_LONG.sub("", " ".join(error.str().split()))

    def _asked(self, error: KafkaError | None) -> bool:
        """Whether the answer of the brokers ends the check."""
        if error is not None:
            # The error of the connection says more than that of the call.
            self._problem.report(self._reason or error.str())
            return False
        with self._lock:
            self._is_watching = False
        self._problem.end()
        return True


def _watch(watch: weakref.ref[BrokerAvailability], closed: threading.Event, settings: dict[str, Any]) -> None:
    """Holds no strong reference: it also ends for a client that was dropped without being closed."""

    def note(error: KafkaError) -> None:
        if (watching := watch()) is not None:
            watching._note(error)

    own: dict[str, Any] = {"error_cb": note}
    admin = AdminClient(settings | own)
    while not closed.is_set():
        error: KafkaError | None = None
        try:
            admin.list_topics(timeout=_ASK_S)
        except KafkaException as raised:
            error = raised.args[0]
        watching = watch()
        if watching is None or watching._asked(error):
            return
        del watching
        closed.wait(_PAUSE_S)
