"""When a log is flushed without being asked: after `flush.messages`, or `flush.ms` after the first that is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.config.setting import LONG_MAX
from penstock.config.topic import TopicConfig


class FlushRule:
    """Counts what one log has appended since it was flushed."""

    def __init__(self, flush_soon: Callable[[], None]) -> None:
        self._flush_soon = flush_soon
        self._messages = 0
        self._timer: asyncio.TimerHandle | None = None

    def is_due(self, messages: int, config: TopicConfig) -> bool:
        """Whether with these messages the log is to be flushed now; if not, it may be in some time."""
        self._messages += messages
        if self._messages >= config.flush_messages:
            return True
        if config.flush_ms < LONG_MAX and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(config.flush_ms / 1000, self._time_is_up)
        return False

    def begin_anew(self) -> None:
        """What was appended so far is flushed, or gone."""
        self._messages = 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _time_is_up(self) -> None:
        self._timer = None
        self._flush_soon()
