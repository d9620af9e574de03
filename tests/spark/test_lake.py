"""The table of a lake: compare-and-set, compaction, expiry, vacuum."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.lake.compaction import bins_of, compact
from penstock.pipeline.lake.delta import Change, Lake, LakeFile, LakeLocation, open_for_archive, open_lake
from penstock.pipeline.lake.record_table import Anchor, unpacked
from penstock.pipeline.lake.upkeep import expire
from support.broker_process import BrokerProcess
from support.lake import HereWorkers, Item, Result, archive_all, archiver_of, lake_of, lake_rows
from support.spark import send

MakeTopic = Callable[..., str]
HOUR_S = 3600


@pytest.fixture
def lakes(tmp_path: Path) -> Iterator[tuple[Lake, Lake]]:
    """One lake, as two processes see it."""
    location = LakeLocation(str(tmp_path / "lake"))
    yield open_for_archive(location, "cluster"), open_for_archive(location, "cluster")


def test_a_change_is_made_on_the_version_that_was_checked(lakes: tuple[Lake, Lake]) -> None:
    one, other = lakes
    seen: list[int | None] = []

    def look() -> bool:
        seen.append(one.mark("x"))
        if len(seen) == 1:
            # Somebody is faster, with something that has nothing to do with it.
            other.commit(Change(marks={"y": 5}), lambda: True)
        if len(seen) == 2:
            other.commit(Change(marks={"x": 7}), lambda: True)
        return True

    assert one.commit(Change(marks={"x": 8}), look)
    assert seen == [None, None, 7]
    assert (one.mark("x"), one.mark("y")) == (8, 5)


def test_a_change_that_is_found_made_is_not_made_again(lakes: tuple[Lake, Lake]) -> None:
    one, other = lakes

    def check() -> bool:
        if one.mark("x") == 1:
            return False
        # As if our own write had been made and its answer lost.
        other.commit(Change(marks={"x": 1}), lambda: True)
        return True

    version = one.version
    assert not one.commit(Change(marks={"x": 1}), check)
    assert one.version == version + 1


def test_a_change_that_is_refused_leaves_nothing(lakes: tuple[Lake, Lake]) -> None:
    one, _ = lakes
    before = one.version

    def refuse() -> bool:
        raise PipelineError("no")

    with pytest.raises(PipelineError, match="no"):
        one.commit(Change(marks={"x": 1}), refuse)
    one.refresh()
    assert (one.version, one.mark("x")) == (before, None)


def test_marks_are_those_of_the_version_that_was_looked_at_last(lakes: tuple[Lake, Lake]) -> None:
    one, other = lakes
    one.commit(Change(marks={"x": 1}), lambda: one.mark("x") is None and one.mark("y") is None)
    assert (one.mark("x"), one.mark("y"), other.mark("x")) == (1, None, None)
    other.commit(Change(marks={"y": 2}), lambda: True)
    assert (other.mark("x"), other.mark("y"), one.mark("y")) == (1, 2, None)
    # Somebody else was in between: what is known of the versions before says nothing.
    other.commit(Change(marks={"x": 3}), lambda: True)
    one.commit(Change(marks={"z": 4}), lambda: True)
    assert [one.mark(key) for key in "xyz"] == [3, 2, 4]
    other.refresh()
    assert [other.mark(key) for key in "xyz"] == [3, 2, 4]


def test_an_anchor_is_one_number() -> None:
    anchor = Anchor(offset=2**50, crc=2**32 - 1)
    assert unpacked(anchor.packed(2**50 + 2**31 - 1), 2**50 + 2**31 - 1) == anchor
    assert anchor.packed(2**50 + 2**31 - 1) < 2**63
    assert unpacked(anchor.packed(2**50 + 2**31), 2**50 + 2**31) is None
    assert unpacked(None, 5) is None


def test_small_files_of_a_topic_and_day_go_together() -> None:
    def file(topic: str, day: str, size: int, offset: int) -> LakeFile:
        stats = f'{{"minValues": {{"topic_id": "i", "partition": 0, "offset": {offset}}}}}'
        return LakeFile(f"{topic}-{day}-{offset}", size, topic, day, 1, stats)

    files = [file("b", "1", 10, 5), file("a", "1", 10, 9), file("a", "1", 40, 0), file("a", "1", 30, 4)]
    files += [file("a", "1", 51, 7), file("a", "2", 10, 0), file("a", "1", 30, 12)]
    assert [[each.path for each in found.files] for found in bins_of(files, 100)] == [["a-1-0", "a-1-4", "a-1-9"]]


def test_compaction_keeps_every_row_and_puts_them_in_order(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(3)
    archiver = archiver_of(broker, tmp_path, topic)
    for step in range(4):
        for number in range(3):
            send(broker, topic, [b"%d-%d" % (step, each) for each in range(50)], number, timestamp=1_700_000_000_000)
        archive_all(archiver)
    before = lake_rows(tmp_path)
    lake = lake_of(tmp_path)
    stale = lake_of(tmp_path)
    assert len(lake.files()) == 4
    done = compact(lake, HereWorkers())
    assert (done.files_before, done.files_after) == (4, 1)
    assert lake_rows(tmp_path) == before
    import pyarrow.parquet as pq

    (file,) = lake.files()
    rows = pq.ParquetFile(tmp_path / file.path).read(columns=["partition", "offset"]).to_pylist()
    assert [(row["partition"], row["offset"]) for row in rows] == [
        (number, offset) for number in range(3) for offset in range(200)
    ]
    assert file.rows == 600
    # Another that started before does not put them together once more.
    assert compact(stale, HereWorkers()).files_before == 0
    # The archive goes on behind it.
    send(broker, topic, [b"later"])
    archive_all(archiver)
    assert len(lake_rows(tmp_path)) == 601


def test_of_two_compactions_at_once_one_is_refused(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    archiver = archiver_of(broker, tmp_path, topic)
    for step in range(3):
        send(broker, topic, [b"%d" % step])
        archive_all(archiver)

    class Slow(HereWorkers):
        def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
            made = super().run(function, items)
            compact(lake_of(tmp_path), HereWorkers())
            send(broker, topic, [b"meanwhile"])
            archive_all(archiver)
            return made

    with pytest.raises(PipelineError, match="another program replaced or removed 3 files meanwhile"):
        compact(lake_of(tmp_path), Slow())
    assert len(lake_rows(tmp_path)) == 4


def test_files_of_an_older_table_are_compacted_with_null_in_new_columns(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from penstock.pipeline.lake.compaction import rewrite

    location = LakeLocation(str(tmp_path))
    paths = []
    for number in range(2):
        old = pa.table(
            {
                "topic_id": ["i"],
                "partition": pa.array([0], pa.int32()),
                "offset": pa.array([number], pa.int64()),
                "value": [b"v"],
            }
        )
        paths.append(f"{number}.parquet")
        pq.write_table(old, tmp_path / paths[-1])
    from penstock.pipeline.lake.compaction import Bin

    files = tuple(LakeFile(path, 1, "t", "2026-01-01", 1, "{}") for path in reversed(paths))
    (made,) = rewrite(location, Bin("t", "2026-01-01", files))
    rows = pq.ParquetFile(tmp_path / made.path).read().to_pylist()
    assert [(row["offset"], row["value"], row["biz_id"]) for row in rows] == [(0, b"v", None), (1, b"v", None)]


def test_days_that_are_over_go_and_watermarks_stay(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, topic: str
) -> None:
    one, other = make_topic(), make_topic(name=f"{topic}-other")
    for name in (one, other):
        send(broker, name, [b"old"], timestamp=1_700_000_000_000)
        send(broker, name, [b"new"])
    archive_all(archiver_of(broker, tmp_path, one, other))
    today = datetime.now(UTC).date()
    gone = expire(lake_of(tmp_path), today - timedelta(days=30), {one})
    assert [file.topic for file in gone] == [one]
    assert len(lake_rows(tmp_path)) == 3
    assert len(expire(lake_of(tmp_path), today - timedelta(days=30))) == 1
    assert expire(lake_of(tmp_path), date(2000, 1, 1)) == []
    assert archive_all(archiver_of(broker, tmp_path, one, other)) == []
    assert [row["value"] for row in lake_rows(tmp_path)] == [b"new", b"new"]


def test_vacuum_deletes_what_killed_tasks_left_and_nothing_younger(
    broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    send(broker, topic, [b"a"])
    archive_all(archiver_of(broker, tmp_path, topic))
    (known,) = tmp_path.glob("topic=*/date=*/*.parquet")
    old, young = known.with_name("old.parquet"), known.with_name("young.parquet")
    for left in (old, young):
        left.write_bytes(known.read_bytes())
    long_ago = time.time() - 100 * HOUR_S
    os.utime(old, (long_ago, long_ago))
    os.utime(known, (long_ago, long_ago))
    lake = lake_of(tmp_path)
    assert [Path(path).name for path in lake.vacuum(48, is_rehearsal=True)] == ["old.parquet"]
    assert old.exists()
    lake.vacuum(48, is_rehearsal=False)
    assert (old.exists(), young.exists(), known.exists()) == (False, True, True)
    assert len(lake_rows(tmp_path)) == 1


def test_a_lake_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"there is no lake at .*nowhere"):
        open_lake(LakeLocation(str(tmp_path / "nowhere")))


def test_the_table_asks_little_of_its_readers(lakes: tuple[Lake, Lake]) -> None:
    protocol = DeltaTable(lakes[0].location.uri).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
