"""A message that is due late does not hold the companion: it is moved on, and what was before it goes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

from support.timers import HOUR_MS, MOVING, Running, Shifted, send, send_records, started, until_delivered
from support.waiting import PATIENCE_S


async def until_moved(running: Running, offset: int) -> None:
    """Sends messages that are due at once until the companion begins behind an offset."""
    companion = running.partition.pair.companion
    assert companion is not None
    deadline, sent = time.monotonic() + PATIENCE_S, 0
    while companion.start_offset <= offset:
        assert time.monotonic() < deadline, f"the companion still begins at {companion.start_offset}"
        await send_records(running.partition, [(b"x" * 500, (("penstock-delay", b"1"),))] * 4)
        sent += 1
        await asyncio.sleep(0.005)


async def test_messages_that_were_moved_are_delivered_once_when_due_or_cancelled_by_name(tmp_path: Path) -> None:
    clock = Shifted()
    running = await started(tmp_path / "logs", clock=clock, saving=MOVING)
    late = b"%d" % HOUR_MS
    await send_records(
        running.partition,
        [
            (b"plain", (("penstock-delay", late),)),
            (b"kept", (("penstock-delay", late), ("penstock-timer-id", b"K"))),
            (b"gone", (("penstock-delay", late), ("penstock-timer-id", b"G"))),
            (b"tick", (("penstock-schedule", b"every 1h"),)),
        ],
    )
    await until_moved(running, 200)
    await send_records(running.partition, [(b"", (("penstock-cancel", b"G"),))])
    await until_moved(running, 500)
    await running.close()
    running = await started(tmp_path / "logs", clock=clock, saving=MOVING)
    await until_moved(running, 800)
    clock.ahead_ms = HOUR_MS + 60_000
    await send(running.partition, [(b"end", 300)], 9, 0)
    counted = await until_delivered(running, b"end")
    counted.pop(b"x" * 500)
    assert counted == Counter([b"plain", b"kept", b"tick", b"end"])
    clock.ahead_ms += HOUR_MS
    await send(running.partition, [(b"second end", 300)], 9, 1)
    counted = await until_delivered(running, b"second end")
    assert counted[b"tick"] == 2 and counted[b"plain"] == counted[b"kept"] == 1 and b"gone" not in counted
    await running.close()
