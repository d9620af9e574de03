"""How much may be in the page cache and not on the disk yet, over all logs.

The kernel lets dirty pages pile up to a point, the same for all processes together, and from there on stops the thread
that writes: here that would be the event loop. So the logs stay below that point by themselves. Where it lies, and how
much of it other processes have taken, is looked up anew with every piece that was handed to the disk.
"""

from __future__ import annotations

import asyncio
import os

_LEAST_BYTES = 64 << 20
_SHARE_PERCENT = 80
"""Of what the kernel would allow; the rest is for what happens between two looks."""


class WriteBacklog:
    """Bytes that were written and not handed to the disk yet, with their bound."""

    def __init__(self, fixed_limit_bytes: int) -> None:
        self._fixed = fixed_limit_bytes
        self._waiters: list[asyncio.Future[None]] = []
        self.bytes = 0
        self.limit_bytes = self.room()

    def room(self) -> int:
        """How much may be outstanding now: what was set, or what the kernel and the other processes leave."""
        if self._fixed:
            return self._fixed
        try:
            facts = _meminfo()
            allowed = _stopping_point(facts["MemAvailable"]) * _SHARE_PERCENT // 100
            others = max(0, facts["Dirty"] + facts["Writeback"] - self.bytes)
        except (OSError, KeyError, ValueError):
            return _LEAST_BYTES
        return max(_LEAST_BYTES, allowed - others)

    def remove(self, count: int) -> None:
        self.bytes -= count
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


def _meminfo() -> dict[str, int]:
    """What /proc/meminfo says, in bytes."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        pairs = (line.split(":", 1) for line in lines)
        return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def _stopping_point(available_bytes: int) -> int:
    """Writers run freely up to the middle between where the kernel begins to write back and where it stops them."""
    background = _setting("dirty_background_bytes") or available_bytes * _setting("dirty_background_ratio") // 100
    hard = _setting("dirty_bytes") or available_bytes * _setting("dirty_ratio") // 100
    return (background + hard) // 2


def _setting(name: str) -> int:
    with open(os.path.join("/proc/sys/vm", name), encoding="ascii") as value:
        return int(value.read())
