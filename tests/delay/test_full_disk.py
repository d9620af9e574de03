"""A disk without room between the two halves of a pair: what was refused never comes, what waits is not held up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.storage.faulty_files import FaultyFiles
from support.timers import Running, send_records, started, until_delivered

LATER = (("penstock-delay", b"400"),)


async def refused_between_the_halves(running: Running, files: FaultyFiles) -> None:
    """Sends a message for later for whose first half there is room, and for its second half none."""
    companion, main = running.partition.pair.companion, running.partition.log
    assert companion is not None
    room = 100
    while companion.end_offset == main.end_offset:
        files.run_full_after(room)
        with pytest.raises(StorageError):
            await send_records(running.partition, [(b"refused", LATER)])
        room += 5
    files.make_room()
    assert companion.end_offset == main.end_offset + 1


@pytest.mark.parametrize("then", ["plain", "delayed", "restart"])
async def test_what_was_refused_is_not_delivered_whatever_is_sent_after_it(tmp_path: Path, then: str) -> None:
    files = FaultyFiles(tmp_path / "logs")
    running = await started(tmp_path / "logs", files)
    await send_records(running.partition, [(b"first", LATER)])
    await refused_between_the_halves(running, files)
    if then == "plain":
        await send_records(running.partition, [(b"plain", ())])
    elif then == "restart":
        await running.close()
        running = await started(tmp_path / "logs", files)
    await send_records(running.partition, [(b"end", (("penstock-delay", b"900"),))])
    expected = Counter([b"first", b"end"] + ([b"plain"] if then == "plain" else []))
    assert await until_delivered(running, b"end") == expected
    await running.close()
    running = await started(tmp_path / "logs", files)
    await send_records(running.partition, [(b"last", (("penstock-delay", b"100"),))])
    assert await until_delivered(running, b"last") == expected + Counter([b"last"])
    await running.close()


async def test_what_was_refused_does_not_hold_up_what_is_due_after_it(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path / "logs")
    running = await started(tmp_path / "logs", files)
    await send_records(running.partition, [(b"waits", (("penstock-delay", b"1500"),))])
    await refused_between_the_halves(running, files)
    # Nothing else is sent: it comes by itself, though it is due behind what was refused.
    assert await until_delivered(running, b"waits") == Counter([b"waits"])
    await running.close()
