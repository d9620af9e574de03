"""What a handler sends in the transaction that its message is settled in."""

from __future__ import annotations

from typing import Unpack

from penstock.sdk.errors import BufferFullError, SettledError
from penstock.sdk.ports import Outgoing
from penstock.sdk.send.composing import Extras, Payload, compose

MESSAGES = 100_000
"""So many may one message bring forth: they are kept in memory until it is acknowledged."""


class Collected:
    """Keeps what is sent until the message is acknowledged; then it goes out in one transaction with its offset."""

    def __init__(self) -> None:
        self._kept: list[Outgoing] = []
        self._is_open = True

    def send(self, topic: str, value: Payload, **extras: Unpack[Extras]) -> None:
        """As `client.send`; it is seen once the message is acknowledged, and never if it is not."""
        if not self._is_open:
            raise SettledError("the message is settled: nothing more goes into its transaction")
        if len(self._kept) >= MESSAGES:
            raise BufferFullError(f"one message has sent {MESSAGES} others in its transaction: no more are kept")
        self._kept.append(compose(topic, value, **extras))

    def close(self) -> tuple[Outgoing, ...]:
        """What there is; nothing more is taken."""
        self._is_open = False
        return tuple(self._kept)
