"""A process that holds a lease and prints what it knows of it, until it is killed.

until MS    it holds for certain until then, in the machine's monotonic time
lost        the session is over; the lease is taken again as soon as it can be
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from penstock.clock import SystemClock
from penstock.cluster.coordination.contract import Create
from penstock.cluster.coordination.zookeeper import ZooKeeperCoordination
from penstock.errors import CoordinationError

LEASE = "/leases/holder"


async def main(servers: str, chroot: str, session_ms: int) -> None:
    tree = await ZooKeeperCoordination.open(servers, chroot, session_ms, SystemClock())
    wanted = asyncio.Event()
    wanted.set()

    def lost() -> None:
        print("lost", flush=True)
        wanted.set()

    tree.on_session_lost(lost)
    told_ms = 0.0
    while True:
        if wanted.is_set():
            with contextlib.suppress(CoordinationError):
                await tree.commit(Create(LEASE, b"", leased=True))
                wanted.clear()
        until_ms = tree.lease_until_ms()
        if until_ms > told_ms:
            told_ms = until_ms
            print(f"until {until_ms}", flush=True)
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
