"""Queues in a folder: torn tails, damage, segments, retention, and processes that are killed at every step."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.brokerless.files import maintenance
from penstock.brokerless.files.queue import FolderQueue, open_folder
from penstock.brokerless.files.segments import base_offsets, segment_path
from penstock.brokerless.files.store import FileStore
from penstock.brokerless.store import SendBatch, Sequenced, StoreAwayError, StoreRefusedError
from penstock.ids import TopicPartition
from penstock.sdk.errors import ClosedError
from penstock.sdk.headers import DELAY, DELIVER_AT
from penstock.sdk.ports import Outgoing
from penstock.sdk.timers import TimerQuery
from penstock.storage.segmented.reading.file_dump import reader_of
from support import folder_child
from support.queue_stores import all_values, batch
from support.waiting import until

TP = TopicPartition("orders", 0)
CHILD = Path(folder_child.__file__)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def store_in(folder: Path, opened: ExitStack) -> FileStore:
    store = opened.enter_context(closing(FileStore(folder)))
    store.topics.create("orders", 2)
    return store


def last_segment(folder: Path, tp: TopicPartition = TP) -> Path:
    return segment_path(folder / str(tp), base_offsets(folder / str(tp))[-1])


def child(folder: Path, work: str, *args: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONHASHSEED": "random", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen([sys.executable, str(CHILD), str(folder), work, *args], stdout=subprocess.PIPE, env=env)


# Torn tails and damage


def test_torn_tail_of_any_length_is_not_served_and_hides_nothing(folder: Path, opened: ExitStack) -> None:
    first = store_in(folder, opened)
    first.append(batch(TP, "sound"))
    sound = last_segment(folder).read_bytes()
    first.append(batch(TP, "torn", first=1))
    whole = last_segment(folder).read_bytes()
    for size in range(len(sound) + 1, len(whole)):
        last_segment(folder).write_bytes(whole[:size])
        with closing(FileStore(folder)) as store:
            assert all_values(store, TP) == ["sound"]
            reader = FileStore(folder)
            with closing(reader):
                assert reader.bounds(TP) == (0, 1)
                store.append(batch(TP, "next", producer=(1 << 62) + 2))
                assert all_values(reader, TP) == ["sound", "next"]
            assert all_values(store, TP) == ["sound", "next"]
        last_segment(folder).write_bytes(sound)


def test_damaged_batch_is_passed_over_and_nothing_behind_it_is_cut(
    folder: Path, opened: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    first = store_in(folder, opened)
    sizes = [0]
    for number, value in enumerate("abc"):
        first.append(batch(TP, value, first=number))
        sizes.append(last_segment(folder).stat().st_size)
    raw = bytearray(last_segment(folder).read_bytes())
    raw[sizes[2] - 2] ^= 0xFF
    last_segment(folder).write_bytes(raw)
    store = opened.enter_context(closing(FileStore(folder)))
    with caplog.at_level(logging.ERROR):
        assert list(store.append(batch(TP, "d", first=3))) == [3]
        assert all_values(store, TP) == ["a", "c", "d"]
    assert "is damaged" in caplog.text


def test_empty_next_segment_left_by_a_crash_is_appended_to(folder: Path, opened: ExitStack) -> None:
    store_in(folder, opened).append(batch(TP, "a"))
    segment_path(folder / str(TP), 1).touch()
    store = opened.enter_context(closing(FileStore(folder)))
    assert list(store.append(batch(TP, "b", first=1))) == [1]
    assert segment_path(folder / str(TP), 1).stat().st_size > 0
    assert all_values(opened.enter_context(closing(FileStore(folder))), TP) == ["a", "b"]


def test_database_of_another_format_is_left_alone(folder: Path, opened: ExitStack) -> None:
    store = store_in(folder, opened)
    with store.database.writing() as db:
        db.execute("pragma user_version = 99")
    with pytest.raises(StoreRefusedError, match="format 99"):
        FileStore(folder)


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreRefusedError):
        FileStore(tmp_path / "file" / "queue")


def test_child_of_a_fork_has_to_open_the_folder_itself(folder: Path, opened: ExitStack) -> None:
    store = store_in(folder, opened)
    child_id = os.fork()
    if child_id == 0:
        try:
            store.append(batch(TP, "a"))
        except ClosedError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child_id, 0)[1]) == 7


# Segments


def test_readers_follow_from_segment_to_segment(folder: Path, opened: ExitStack) -> None:
    writer = opened.enter_context(closing(FileStore(folder)))
    writer.topics.create("orders", 1, config={"segment.bytes": "1024"})
    follower = opened.enter_context(closing(FileStore(folder)))
    offset = 0
    for number in range(60):
        writer.append(batch(TP, f"{number}-" + "x" * 100, first=number))
        page = follower.read(TP, offset, 10)
        assert [message.offset for message in page.messages] == [number]
        offset = page.next_offset
    assert len(base_offsets(folder / str(TP))) > 5
    with closing(FileStore(folder)) as late:
        assert len(all_values(late, TP)) == 60
        assert [each.offset for each in late.read(TP, 37, 2).messages] == [37, 38]
        assert late.bounds(TP) == (0, 60)


def test_appenders_take_turns_across_segments(folder: Path, opened: ExitStack) -> None:
    stores = [opened.enter_context(closing(FileStore(folder))) for _ in range(2)]
    stores[0].topics.create("orders", 1, config={"segment.bytes": "1024"})
    for number in range(60):
        offsets = stores[number % 2].append(batch(TP, "x" * 200, producer=(1 << 62) + number % 2, first=number))
        assert list(offsets) == [number]


def test_repeat_is_recognised_by_a_process_that_opens_the_folder_later(folder: Path, opened: ExitStack) -> None:
    store_in(folder, opened).append(batch(TP, "a", "b"))
    assert list(FileStore(folder).append(batch(TP, "a", "b"))) == [0, 1]


def test_old_and_surplus_segments_are_removed(folder: Path, opened: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_RETAIN_MS", 10)
    queue: FolderQueue = opened.enter_context(closing(open_folder(folder)))
    queue.topics.create("orders", 1, config={"segment.bytes": "1024", "retention.bytes": "3000"})
    follower = opened.enter_context(closing(FileStore(folder)))
    for number in range(60):
        queue.append(batch(TP, "x" * 200, first=number))
    until(lambda: queue.bounds(TP)[0] > 0 and _size(folder) <= 3000 + 1500, "old segments are removed")
    assert queue.bounds(TP)[1] == 60
    page = follower.read(TP, 0, 1)
    assert page.messages[0].offset == follower.bounds(TP)[0] > 0


def test_messages_that_are_too_old_are_removed_also_from_the_last_segment(
    folder: Path, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_RETAIN_MS", 10)
    queue = opened.enter_context(closing(open_folder(folder)))
    queue.topics.create("orders", 1, config={"retention.ms": "100"})
    queue.append(batch(TP, "old"))
    until(lambda: queue.bounds(TP) == (1, 1), "the message is too old")
    assert list(queue.append(batch(TP, "new", first=1))) == [1]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / str(TP)).glob("*.log"))


def test_segments_are_readable_with_penstock_dump(folder: Path, opened: ExitStack) -> None:
    store_in(folder, opened).append(batch(TP, "a", "b"))
    read = reader_of(last_segment(folder), with_records=True)
    assert read is not None
    rows = list(read())
    assert rows and not any("damage" in row for row in rows)


# Power loss: what `sync=always` does can only be shown as calls.


def test_nothing_is_acknowledged_after_a_failed_sync(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(FileStore(folder, is_synced=True)) as store:
        store.topics.create("orders", 1)
        store.append(batch(TP, "a"))

        def fail(_: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(StoreAwayError) as failed:
                store.append(batch(TP, "b", first=1))
        assert failed.value.is_outcome_unknown
        with pytest.raises(StoreAwayError):
            store.append(batch(TP, "b", first=1))


def test_full_disk_leaves_no_part_of_a_batch(folder: Path, opened: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(folder, opened)
    store.append(batch(TP, "a"))
    pwrite = os.pwrite

    def full(fd: int, data: bytes, position: int) -> int:
        if len(data) > 50:
            return pwrite(fd, bytes(data)[:50], position)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreAwayError):
            store.append(batch(TP, "b", first=1))
    assert list(store.append(batch(TP, "b", first=1))) == [1]
    assert all_values(store, TP) == ["a", "b"]


# Killed at every step


def _run_killed_at_each_step(folder: Path, work: str) -> Iterator[tuple[Path, bool]]:
    """The folder after a process was killed at its first change, at its second, and so on; and whether it was."""
    for number in range(1, 60):
        copy = folder.parent / f"{work}-{number}"
        subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
        process = child(copy, work, str(number))
        process.communicate(timeout=60)
        yield copy, process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            return
        assert process.returncode == -signal.SIGKILL
    raise AssertionError("the process makes more changes than expected")


def test_plain_appends_survive_a_kill_at_any_step(folder: Path, opened: ExitStack) -> None:
    store_in(folder, opened).append(batch(TP, "before", producer=99))
    steps = 0
    for copy, _ in _run_killed_at_each_step(folder, "append"):
        with closing(FileStore(copy)) as store:
            store.append(batch(TP, "after", producer=98))
            found = all_values(store, TP)
            assert found[0] == "before" and found[-1] == "after"
            assert found[1:-1] == ["a0", "a1", "a2"][: len(found) - 2]
        steps += 1
    assert steps > 3


def test_transaction_is_all_or_nothing_when_killed_at_any_step(folder: Path, opened: ExitStack) -> None:
    store_in(folder, opened).append(batch(TP, "before", producer=99))
    outcomes = set()
    for copy, was_killed in _run_killed_at_each_step(folder, "transact"):
        with closing(FileStore(copy)) as store:
            store.complete_decided()
            store.append(batch(TP, "after", producer=98))
            is_made = "t1" in all_values(store, TP)
            assert all_values(store, TP) == ["before", *(["t1"] if is_made else []), "after"]
            assert all_values(store, folder_child.SECOND) == (["t2"] if is_made else [])
            assert len(store.read_timers(TimerQuery("orders"))) == is_made
            assert store.committed("g", [TP]) == ({TP: 1} if is_made else {})
        outcomes.add((is_made, was_killed))
    assert outcomes == {(False, True), (True, True), (True, False)}


def test_delayed_message_is_delivered_once_when_killed_at_any_step(folder: Path, opened: ExitStack) -> None:
    now_ms = time.time_ns() // 1_000_000
    store = store_in(folder, opened)
    late: tuple[tuple[str, bytes | None], ...] = ((DELIVER_AT, str(now_ms + 1).encode()),)
    messages = [Outgoing("orders", value, None, ((DELAY, b"1ms"),)) for value in (b"x", b"y")]
    store.append(SendBatch(TP, messages, Sequenced(97, 0)))
    store.append(batch(folder_child.SECOND, "z", producer=99, headers=late))
    for copy, _ in _run_killed_at_each_step(folder, "deliver"):
        with closing(open_folder(copy)) as queue:
            until(lambda queue=queue: queue.timers.count() == 0, "everything is delivered")
            # What the killed process had decided is written partition by partition.
            for tp, expected in ((folder_child.SECOND, ["z"]), (TP, ["x", "y"])):
                until(lambda queue=queue, tp=tp: len(all_values(queue, tp)) > 0, "decided appends are completed")
                assert all_values(queue, tp) == expected


def test_writers_that_are_killed_lose_nothing_acknowledged_and_double_nothing(folder: Path, opened: ExitStack) -> None:
    store_in(folder, opened)
    acknowledged: dict[str, int] = {}
    for turn in range(3):
        writers = {f"{turn}-{place}": child(folder, "write-on", f"{turn}-{place}") for place in range(3)}
        for name, writer in writers.items():
            assert writer.stdout is not None
            for _ in range(random.randint(5, 40)):
                acknowledged[name] = int(writer.stdout.readline())
            writer.kill()
        for name, writer in writers.items():
            for line in writer.communicate(timeout=30)[0].split(b"\n")[:-1]:
                acknowledged[name] = int(line)
    queue = opened.enter_context(closing(open_folder(folder)))
    until(lambda: queue.timers.count() == 0, "delayed messages are delivered")
    found = all_values(queue, TP)
    assert len(found) == len(set(found))
    for name, last in acknowledged.items():
        numbers = [int(each.removeprefix(f"{name}-")) for each in found if each.startswith(f"{name}-")]
        assert set(range(last + 1)) <= set(numbers)
        undelayed = [number for number in numbers if number % 5 != 4]
        assert undelayed == sorted(undelayed)


def test_decided_append_that_a_killed_process_wrote_is_synced_before_it_is_forgotten(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `sync=always` the database forgets a decided append only when the log is on the disk."""
    with closing(FileStore(folder, is_synced=True)) as store:
        store.topics.create("orders", 2)
        store.append(batch(TP, "before", producer=99))
    written = next(
        copy for copy, _ in _run_killed_at_each_step(folder, "transact") if _decided(copy) and "t1" in _values(copy)
    )
    synced: list[int] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    with closing(FileStore(written, is_synced=True)) as store:
        store.complete_decided()
    assert last_segment(written).stat().st_ino in synced
    assert _decided(written) == 0


def _decided(folder: Path) -> int:
    with closing(FileStore(folder)) as store:
        return len(store.database.read("select id from decided"))


def _values(folder: Path) -> list[str]:
    with closing(FileStore(folder)) as store:
        return all_values(store, TP)
