"""Headers under another prefix than ours, for applications that have names of their own. Pure.

On a Penstock cluster they are what the broker leaves alone: it would delay a message with `penstock-delay` itself.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.sdk.headers import TIMING
from penstock.sdk.hooks.delay_bridge import TARGET, TARGET_PARTITION
from penstock.sdk.ports import Received

OURS = "penstock-"
_NAMES = frozenset(name.removeprefix(OURS) for name in (*TIMING, TARGET, TARGET_PARTITION))


def renamed(received: Received, prefix: str) -> Received:
    """The message with `<prefix>delay` and so on as `penstock-delay`."""
    if prefix == OURS or not any(name.startswith(prefix) for name, _ in received.headers):
        return received
    return replace(received, headers=tuple((_renamed(name, prefix), value) for name, value in received.headers))


def _renamed(name: str, prefix: str) -> str:
    rest = name.removeprefix(prefix)
    return OURS + rest if name.startswith(prefix) and rest in _NAMES else name
