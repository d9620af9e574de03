"""How much may wait for the disk."""

from __future__ import annotations

import asyncio

from penstock.storage.segmented.write_backlog import WriteBacklog


def test_a_limit_that_was_set_counts_whatever_the_kernel_says() -> None:
    assert WriteBacklog(123).room() == 123


def test_what_others_have_dirty_is_taken_off_and_our_own_is_not() -> None:
    outstanding = WriteBacklog(0)
    outstanding.bytes = 1 << 50  # all that is dirty is ours, as far as we know
    alone = outstanding.room()
    outstanding.bytes = 0  # all that is dirty is somebody else's
    assert 64 << 20 <= outstanding.room() <= alone


async def test_whoever_waits_is_told_when_some_was_handed_over() -> None:
    outstanding = WriteBacklog(100)
    outstanding.bytes = 150
    waiting = asyncio.create_task(outstanding.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    outstanding.remove(60)
    await waiting
    assert outstanding.bytes == 90
