"""The files of a spill folder: order, bounds, what a crash leaves, damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.errors import BufferFullError, SpillError
from penstock.sdk.ports import Outgoing
from penstock.sdk.send.spill_entries import SpilledMessage, encoded, entries_in
from penstock.sdk.send.spill_folder import SpillFolder

MANY = 1 << 30
payloads = st.none() | st.binary(max_size=50)
outgoings = st.builds(
    Outgoing,
    topic=st.text(min_size=1, max_size=20),
    value=payloads,
    key=payloads,
    headers=st.lists(st.tuples(st.text(max_size=10), payloads), max_size=4).map(tuple),
    partition=st.none() | st.integers(0, 2**31 - 1),
    timestamp_ms=st.none() | st.integers(0, 2**48),
)


def message(number: int) -> Outgoing:
    return Outgoing("topic", str(number).encode(), headers=(("a", None), ("a", b"1")), partition=3)


def filled(folder: Path, count: int, segment_bytes: int = MANY) -> SpillFolder:
    spill = SpillFolder(folder, MANY, segment_bytes)
    for number in range(count):
        spill.append(message(number))
    return spill


def values(entries: list[SpilledMessage]) -> list[int]:
    return [int(entry.outgoing.value or b"") for entry in entries]


def all_of(spill: SpillFolder) -> list[int]:
    found: list[int] = []
    while entries := spill.take(7):
        found += values(entries)
    return found


@given(st.lists(outgoings, max_size=5))
def test_entries_come_back_as_they_were(messages: list[Outgoing]) -> None:
    entries = [SpilledMessage(number, each) for number, each in enumerate(messages)]
    raw = b"".join(map(encoded, entries))
    assert [entry for entry, _ in entries_in(raw)] == entries


@given(outgoings, st.data())
def test_a_flipped_byte_is_noticed(outgoing: Outgoing, data: st.DataObject) -> None:
    raw = bytearray(encoded(SpilledMessage(1, outgoing)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    assert list(entries_in(bytes(raw))) == []


@given(outgoings, st.data())
def test_half_an_entry_is_none(outgoing: Outgoing, data: st.DataObject) -> None:
    whole = encoded(SpilledMessage(1, outgoing))
    cut = encoded(SpilledMessage(2, outgoing))[: data.draw(st.integers(0, len(whole) - 1))]
    assert [entry.number for entry, _ in entries_in(whole + cut)] == [1]


@pytest.mark.parametrize("segment_bytes", [1, 200, MANY])
def test_messages_are_taken_in_order_also_while_more_are_appended(tmp_path: Path, segment_bytes: int) -> None:
    spill = filled(tmp_path, 50, segment_bytes)
    first = values(spill.take(10))
    assert 1 <= len(first) <= 10
    spill.append(message(50))
    assert first + all_of(spill) == list(range(51))
    spill.append(message(51))
    assert values(spill.take(10)) == [51]
    spill.close()


@pytest.mark.parametrize("segment_bytes", [1, 200, MANY])
def test_the_next_process_goes_on_behind_what_was_sent(tmp_path: Path, segment_bytes: int) -> None:
    spill = filled(tmp_path, 50, segment_bytes)
    spill.take(30)
    spill.sent(20)
    assert spill.waiting == 30
    spill.close()
    spill = SpillFolder(tmp_path, MANY, segment_bytes)
    assert spill.waiting == 30
    spill.append(message(50))
    assert all_of(spill) == list(range(20, 51))
    spill.close()


def test_rewinding_goes_back_to_what_was_not_sent(tmp_path: Path) -> None:
    spill = filled(tmp_path, 20, 100)
    spill.take(20)
    spill.sent(5)
    spill.rewind()
    assert all_of(spill) == list(range(5, 20))
    spill.close()


def test_files_go_when_everything_in_them_was_sent(tmp_path: Path) -> None:
    spill = filled(tmp_path, 20, 1)
    assert len(list(tmp_path.glob("*.spill"))) == 20
    spill.take(20)
    spill.sent(15)
    assert len(list(tmp_path.glob("*.spill"))) == 5
    spill.sent(20)
    assert list(tmp_path.glob("*.spill")) == []
    assert spill.waiting == 0
    spill.append(message(20))
    assert all_of(spill) == [20]
    spill.close()


def test_a_bound_holds_and_is_free_again_when_something_was_sent(tmp_path: Path) -> None:
    size = len(encoded(SpilledMessage(0, message(0))))
    spill = SpillFolder(tmp_path, 3 * size, segment_bytes=1)
    for number in range(3):
        spill.append(message(number))
    with pytest.raises(BufferFullError, match=f"has {3 * size} bytes"):
        spill.append(message(3))
    spill.take(1)
    spill.sent(1)
    spill.append(message(3))
    assert all_of(spill) == [1, 2, 3]
    spill.close()


def test_what_a_crash_left_of_the_last_entry_is_cut_off(tmp_path: Path) -> None:
    filled(tmp_path, 5).close()
    (path,) = tmp_path.glob("*.spill")
    whole = path.stat().st_size
    os.truncate(path, whole - 3)
    spill = SpillFolder(tmp_path, MANY)
    spill.append(message(9))
    assert all_of(spill) == [0, 1, 2, 3, 9]
    spill.close()
    assert list(tmp_path.glob("*.damaged")) == []


def test_a_first_entry_that_was_never_whole_leaves_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    (path,) = tmp_path.glob("*.spill")
    os.truncate(path, 5)
    spill = SpillFolder(tmp_path, MANY)
    assert spill.waiting == 0
    spill.append(message(1))
    assert all_of(spill) == [1]
    spill.sent(spill.end)
    assert list(tmp_path.glob("*.spill")) == []
    spill.close()


def test_damage_in_the_middle_is_kept_aside_and_what_is_behind_it_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = len(encoded(SpilledMessage(0, message(0))))
    filled(tmp_path, 9, segment_bytes=3 * size).close()
    first, middle, last = sorted(tmp_path.glob("*.spill"))
    raw = bytearray(middle.read_bytes())
    raw[size + 12] ^= 1
    middle.write_bytes(raw)
    spill = SpillFolder(tmp_path, MANY)
    assert all_of(spill) == [0, 1, 2, 3, 6, 7, 8]
    assert f"spill file {middle} is damaged" in caplog.text
    assert middle.with_suffix(".damaged").read_bytes() == raw
    spill.sent(spill.end)
    assert spill.waiting == 0
    spill.close()
    assert not first.exists() and not last.exists()


def test_a_mark_that_cannot_be_read_sends_everything_once_more(tmp_path: Path) -> None:
    spill = filled(tmp_path, 5)
    spill.sent(3)
    spill.close()
    (tmp_path / "sent").write_bytes(b"\x00" * 12)
    spill = SpillFolder(tmp_path, MANY)
    assert all_of(spill) == [0, 1, 2, 3, 4]
    spill.close()


def test_a_mark_ahead_of_the_files_is_believed(tmp_path: Path) -> None:
    spill = filled(tmp_path, 5)
    spill.take(5)
    spill.sent(4)
    spill.close()
    (path,) = tmp_path.glob("*.spill")
    path.write_bytes(b"")
    spill = SpillFolder(tmp_path, MANY)
    assert spill.waiting == 0
    spill.append(message(5))
    assert all_of(spill) == [5]
    spill.close()


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    spill = filled(tmp_path, 1)
    with pytest.raises(SpillError, match=f"process {os.getpid()}"):
        SpillFolder(tmp_path, MANY)
    spill.close()
    SpillFolder(tmp_path, MANY).close()


def test_refused_messages_are_kept_in_a_file_of_their_own(tmp_path: Path) -> None:
    spill = filled(tmp_path, 3)
    for entry in spill.take(2):
        spill.refuse(entry)
    spill.sent(3)
    spill.close()
    raw = (tmp_path / "refused.spill").read_bytes()
    assert values([entry for entry, _ in entries_in(raw)]) == [0, 1]
    spill = SpillFolder(tmp_path, MANY)
    assert spill.waiting == 0
    spill.close()
