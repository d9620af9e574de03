"""What is particular to the embedded engine: one file, damage, crashes."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cluster.coordination.contract import Create, Node, Put
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.errors import CoordinationError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coordination.db"


async def fill(path: Path) -> None:
    tree = await EmbeddedCoordination.open(path)
    await tree.commit(Create("/a", b"a value long enough to be found in the file"))
    await tree.close()


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes() if path.exists() else b""))


async def assert_refused(path: Path, reason: str) -> None:
    with pytest.raises(CoordinationError, match=reason) as caught:
        await EmbeddedCoordination.open(path)
    assert str(path) in str(caught.value)


async def test_between_commits_there_is_one_file(path: Path) -> None:
    tree = await EmbeddedCoordination.open(path)
    await tree.commit(Create("/a", b""))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    await tree.close()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


async def test_a_file_of_zero_bytes_is_made_anew(path: Path) -> None:
    rewrite(path, lambda nothing: b"")
    await fill(path)


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    rewrite(path, lambda nothing: b"these are notes, not a database\n" * 100)
    await assert_refused(path, "damaged or not one")


async def test_a_database_of_another_program_is_refused(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE songs (title TEXT)")
    other.commit()
    other.close()
    await assert_refused(path, "another program")


async def test_a_newer_format_is_refused(path: Path) -> None:
    await fill(path)
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 2")
    other.commit()
    other.close()
    await assert_refused(path, "format 2")


async def test_a_file_from_before_there_was_a_clock_is_at_version_zero(path: Path) -> None:
    await fill(path)
    other = sqlite3.connect(path)
    other.execute("DELETE FROM nodes WHERE path = '/clock'")
    other.commit()
    other.close()
    tree = await EmbeddedCoordination.open(path)
    assert await tree.changed_since(0) == (0, [])
    assert await tree.commit(Put("/a", b"", 0), seen=0) == 1
    assert await tree.changed_since(0) == (1, ["/a"])
    await tree.close()


async def test_leases_are_not_in_the_file(path: Path) -> None:
    tree = await EmbeddedCoordination.open(path)
    await tree.commit(Create("/kept", b""), Create("/lease", b"", leased=True))
    other = sqlite3.connect(path)
    assert other.execute("SELECT path FROM nodes ORDER BY path").fetchall() == [("/clock",), ("/kept",)]
    other.close()
    await tree.close()


async def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    await assert_refused(tmp_path, "cannot be opened")


async def test_a_file_cut_short_is_refused(path: Path) -> None:
    await fill(path)
    rewrite(path, lambda content: content[:-4096])
    await assert_refused(path, "damaged")


async def test_a_flipped_bit_in_a_value_is_refused(path: Path) -> None:
    await fill(path)
    rewrite(path, lambda content: content.replace(b"long enough", b"mong enough"))
    await assert_refused(path, "checksum of /a is wrong")


async def test_a_value_damaged_while_the_file_is_open_is_not_served(path: Path) -> None:
    await fill(path)
    tree = await EmbeddedCoordination.open(path)
    other = sqlite3.connect(path)
    other.execute("UPDATE nodes SET value = x'00'")
    other.commit()
    other.close()
    with pytest.raises(CoordinationError, match="checksum of /a is wrong"):
        await tree.get("/a")
    await tree.close()


async def test_a_file_locked_by_another_program_fails_the_commit_and_serves_again_after(
    path: Path,
) -> None:
    await fill(path)
    tree = await EmbeddedCoordination.open(path, busy_timeout_ms=10)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(CoordinationError, match="locked"):
        await tree.commit(Create("/b", b""))
    other.execute("ROLLBACK")
    other.close()
    await tree.commit(Create("/b", b""))
    assert await tree.get("/b") == Node(b"", 0)
    await tree.close()


async def test_commits_do_not_block_the_event_loop(path: Path) -> None:
    await fill(path)
    tree = await EmbeddedCoordination.open(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    # The commit now waits for the lock in its thread; that this line is reached shows the loop goes on.
    committing = asyncio.create_task(tree.commit(Create("/b", b"")))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not committing.done()
    other.execute("ROLLBACK")
    other.close()
    await committing
    await tree.close()


_WRITER = """
import asyncio, sys
from pathlib import Path
from penstock.cluster.coordination.contract import Create, Put
from penstock.cluster.coordination.embedded import EmbeddedCoordination

async def main():
    tree = await EmbeddedCoordination.open(Path(sys.argv[1]))
    await tree.commit(Create("/a", b"0"), Create("/b", b"0"))
    version = 0
    while True:
        value = str(version + 1).encode()
        await tree.commit(Put("/a", value, version), Put("/b", value, version))
        version += 1
        print(version, flush=True)

asyncio.run(main())
"""


def write_until_killed(path: Path, acknowledged: int) -> int:
    """Kills a process that commits without pause; returns the last commit it acknowledged."""
    command = [sys.executable, "-c", _WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        last = 0
        while last < acknowledged:
            last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
    return int(rest[-1]) if rest else last


@pytest.mark.parametrize("acknowledged", [1, 7, 40])
async def test_what_was_acknowledged_survives_kill_nine_and_commits_stay_whole(path: Path, acknowledged: int) -> None:
    last = write_until_killed(path, acknowledged)
    tree = await EmbeddedCoordination.open(path)
    a, b = await tree.get("/a"), await tree.get("/b")
    assert a is not None and a == b
    # One commit may have been made without its acknowledgement getting out.
    assert a.version in (last, last + 1)
    assert a.value == str(a.version).encode()
    await tree.commit(Put("/a", b"goes on", a.version))
    await tree.close()


def crash_half_way_through_a_transaction(path: Path, copy: Path) -> None:
    """Copies the file and its journal as a crash would leave them, with uncommitted pages in the file."""
    crashing = sqlite3.connect(path, isolation_level=None)
    # Pages beyond the cache reach the file before the commit.
    crashing.execute("PRAGMA cache_size = 1")
    crashing.execute("BEGIN IMMEDIATE")
    crashing.execute("UPDATE nodes SET value = x'00', version = 9")
    for number in range(200):
        crashing.execute("INSERT INTO nodes VALUES (?, '/', zeroblob(5000), 0, 0)", (f"/{number}",))
    copy.write_bytes(path.read_bytes())
    Path(f"{copy}-journal").write_bytes(Path(f"{path}-journal").read_bytes())
    assert copy.stat().st_size > 100_000
    crashing.execute("ROLLBACK")
    crashing.close()


async def test_a_journal_left_by_a_crash_is_rolled_back(path: Path, tmp_path: Path) -> None:
    await fill(path)
    copy = tmp_path / "copy.db"
    crash_half_way_through_a_transaction(path, copy)
    tree = await EmbeddedCoordination.open(copy)
    assert await tree.children("/") == ["a"]
    assert await tree.get("/a") == Node(b"a value long enough to be found in the file", 0)
    await tree.close()
