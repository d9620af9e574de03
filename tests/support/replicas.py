"""A follower's log beside its leader's: copying, and whether the two say the same."""

from __future__ import annotations

from penstock.errors import Code
from penstock.replication.divergence import Append, CutBack, Divergence, diverges, next_step, position_of
from penstock.storage.contract import Log
from support.logs import ALL, content, read_all, read_batches
from support.transactions import read_committed


async def copy(leader: Log, follower: Log, max_bytes: int = ALL, *, torn: int = 0) -> None:
    """Brings the follower to the leader's end, fetch by fetch; each answer may end within a batch."""
    while follower.end_offset < leader.end_offset:
        before = follower.end_offset
        data = content(await leader.read(before, max_bytes, leader.end_offset))
        behind = content(await leader.read(before, ALL, leader.end_offset))[len(data) :][:torn]
        assert await follower.append_as_is(memoryview(data + behind)) == follower.end_offset
        assert follower.end_offset > before


async def reconcile(leader: Log, follower: Log) -> int:
    """Cuts the follower back until the two agree, as `following` decides; gives how many cuts that took."""
    cuts = 0
    while True:
        asked = position_of(follower.epochs, follower.end_offset)
        divergence = diverges(asked, leader.epochs, leader.end_offset)
        step = next_step(Code.NONE, divergence, leader.start_offset, asked, follower.epochs)
        if isinstance(step, Append):
            return cuts
        assert isinstance(step, CutBack)
        assert isinstance(divergence, Divergence)
        await follower.cut(step.end_offset)
        cuts += 1
        assert cuts < 50


def producers_of(log: Log) -> dict[int, tuple[object, ...]]:
    """What a log knows of its producers, whenever it saw them."""
    return {
        producer: (
            entry.epoch,
            entry.first_sequence,
            entry.coordinator_epoch,
            entry.marker_offset,
            entry.open_since,
            tuple(entry.batches),
        )
        for producer, entry in log.producers.entries()
    }


async def check_same(leader: Log, follower: Log) -> None:
    """Whoever reads, asks for epochs, sends again or leaves out aborted transactions cannot tell the two apart."""
    assert (follower.start_offset, follower.end_offset) == (leader.start_offset, leader.end_offset)
    assert await read_batches(follower) == await read_batches(leader)
    assert await read_batches(follower, max_bytes=1) == await read_batches(leader)
    assert await read_committed(follower) == await read_committed(leader)
    assert follower.epochs.starts == leader.epochs.starts
    assert producers_of(follower) == producers_of(leader)
    assert follower.first_unstable_offset == leader.first_unstable_offset
    assert follower.aborted_transactions(0, ALL) == leader.aborted_transactions(0, ALL)
    assert await follower.find_max_timestamp() == await leader.find_max_timestamp()
    for record in (await read_all(leader))[::7]:
        assert await read_all(follower, record.offset) == await read_all(leader, record.offset)
