"""A process that holds a lease in a database, and says line by line what it thinks of it.

    python sql_lease_child.py ADDRESS SESSION_MS

It says `leased` once, `held` and `not held` when that changes, and, when its session is lost, what came of a commit on
the clock that it had seen before.
"""

from __future__ import annotations

import asyncio
import sys

from penstock.clock import SystemClock
from penstock.cluster.coordination.contract import Create
from penstock.cluster.coordination.sql import SqlCoordination
from penstock.config.database_address import DatabaseAddress
from penstock.errors import CoordinationError

_LOOK_S = 0.01


def say(text: str) -> None:
    print(text, flush=True)


async def main(address: str, session_ms: int) -> None:
    clock = SystemClock()
    tree = await SqlCoordination.open(DatabaseAddress.parse(address), "tests", session_ms, clock)
    lost = asyncio.Event()
    tree.on_session_lost(lost.set)
    seen = await tree.commit(Create("/lease", b"child", leased=True))
    say("leased")
    was_held = True
    while not lost.is_set():
        is_held = tree.lease_until_ms() > clock.monotonic_ms()
        if is_held != was_held:
            say("held" if is_held else "not held")
            was_held = is_held
        await asyncio.sleep(_LOOK_S)
    say("lost")
    try:
        await tree.commit(Create("/stale", b""), seen=seen)
        say("committed")
    except CoordinationError as error:
        say(type(error).__name__)
    await tree.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
