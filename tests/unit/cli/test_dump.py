"""`penstock dump` prints every file that is written, and shows damage where it is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.cli.main import run
from penstock.config.loader import load
from penstock.records.compression import Codec
from support.logs import AT, NOW_MS, append, batch, open_engine, settings
from support.transactions import end, txn_append

ONE = len(batch(b"x" * 900, keys=[b"key"], producer=5))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with one of each file."""
    folder = tmp_path_factory.mktemp("dump")

    async def write() -> None:
        flags = {"broker.data": str(folder), "broker.listen": "127.0.0.1:0", "broker.http": "127.0.0.1:0"}
        broker = Broker(load(None, {}, flags))
        await broker.start()
        await broker.close()
        config = settings(segment_bytes=4096, index_interval_bytes=1000, cleanup_policy="compact,delete")
        config_now = settings(
            segment_bytes=4096, index_interval_bytes=1000, cleanup_policy="compact", min_cleanable_dirty_ratio="0"
        )
        engine = await open_engine(folder / "logs", config)
        log = engine.logs[AT]
        for number in range(10):
            await append(
                log, b"x" * 900, keys=[b"key"], producer=5, sequence=number, at_ms=NOW_MS + number, codec=Codec.NONE
            )
        log.configure(config_now)
        await log.compact()
        await engine.close()

    asyncio.run(write())
    return folder


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def copy(path: Path, to: Path) -> Path:
    target = to / path.name
    target.write_bytes(path.read_bytes())
    return target


def last(data: Path, suffix: str) -> Path:
    return sorted((data / "logs" / "orders-0").glob(f"*{suffix}"))[-1]


def test_every_file_of_a_data_folder_can_be_printed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [path for path in sorted(data.rglob("*")) if path.is_file() and path.name != "lock"]
    kinds = {path.suffix or path.name for path in files}
    assert kinds == {".log", ".index", ".timeindex", ".aborted", ".producers", "epochs", ".json", ".db"}
    assert run(["dump", *map(str, files)]) == 0
    assert run(["dump", "--json", "--records", *map(str, files)]) == 0
    out = capsys.readouterr().out
    assert "DAMAGED" not in out


def test_batches_are_listed_with_position_and_offsets(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "--json", str(last(data, ".log"))]) == 0
    rows = lines(capsys)
    assert [row["position"] for row in rows] == [number * ONE for number in range(len(rows))]
    assert [row["base_offset"] for row in rows] == [8, 9]
    assert rows[0]["producer_id"] == 5
    assert rows[0]["codec"] == "none"


def test_records_are_decoded_on_demand(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "--json", "--records", str(last(data, ".log"))]) == 0
    content = lines(capsys)[0]["content"]
    assert content == [{"offset": 8, "timestamp": NOW_MS + 8, "key": "key", "value": "x" * 900, "headers": []}]
    assert run(["dump", "--records", str(last(data, ".log"))]) == 0
    assert "  offset=8 timestamp=2023-11-14T22:13:20.008Z key=key value=xxx" in capsys.readouterr().out


def test_indexes_are_listed_with_whole_offsets(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "--json", str(last(data, ".index")), str(last(data, ".timeindex"))]) == 0
    rows = [{key: value for key, value in row.items() if key != "file"} for row in lines(capsys)]
    assert {"log_size": 2 * ONE} in rows
    assert {"timestamp": NOW_MS + 9, "offset": 9} in rows


def test_producers_and_notes_are_listed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = data / "logs" / "orders-0"
    files = [last(data, ".producers"), folder / "epochs", folder / "compaction.json", data / "logs" / "checkpoint.json"]
    assert run(["dump", "--json", *map(str, files)]) == 0
    rows = lines(capsys)
    assert rows[0]["producer_id"] == 5
    assert any(row.get("epoch") == 3 and row.get("start_offset") == 0 for row in rows)
    assert any(row.get("log") == "orders-0" and row.get("end") == 10 for row in rows)
    assert any(row.get("cleaned") == 8 for row in rows)


def test_markers_and_aborted_transactions_are_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def write() -> None:
        engine = await open_engine(tmp_path, settings())
        for producer, commit in ((1, True), (2, False)):
            await txn_append(engine.logs[AT], b"x", producer=producer)
            await end(engine.logs[AT], producer, commit=commit, epoch=1, coordinator_epoch=4)
        await txn_append(engine.logs[AT], b"x", producer=3)
        await engine.close()

    asyncio.run(write())
    folder = tmp_path / str(AT)
    assert run(["dump", "--json", str(folder / f"{0:020d}.log")]) == 0
    rows = lines(capsys)
    assert [row.get("control") for row in rows] == [
        None,
        "commit by coordinator epoch 4",
        None,
        "abort by coordinator epoch 4",
        None,
    ]
    assert all(row["transactional"] for row in rows)
    assert run(["dump", str(folder / f"{0:020d}.aborted"), str(folder / f"{5:020d}.producers")]) == 0
    out = capsys.readouterr().out
    assert "producer_id=2 first_offset=2 marker_offset=3 stable_offset=4" in out
    assert "end_offset=5" in out
    assert "open_since=4" in out


def test_the_coordination_tree_is_listed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "--json", str(data / "coordination.db"), str(data / "meta.json")]) == 0
    rows = lines(capsys)
    assert any("path" in row for row in rows)
    assert rows[-1]["broker_id"] == 1


def test_damage_in_a_segment_is_shown_where_it_is(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy(last(data, ".log"), tmp_path)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content + b"torn")
    assert run(["dump", "--json", str(path)]) == 1
    rows = lines(capsys)
    assert [("damage" in row, row["position"], row["size"]) for row in rows] == [
        (True, 0, ONE),
        (False, ONE, ONE),
        (True, 2 * ONE, 4),
    ]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".aborted", ".producers"])
def test_damage_in_a_small_file_is_shown(
    data: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy(last(data, suffix), tmp_path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert run(["dump", str(path)]) == 1
    assert "DAMAGED" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["epochs", "partition.json", "checkpoint.json", "compaction.json", "meta.json", "coordination.db"]
)
@pytest.mark.parametrize("content", [b"", b"garbage\n", b"\xff\x00", b"[]"])
def test_garbage_is_damage_and_not_a_crash(
    tmp_path: Path, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    expected = 0 if name == "epochs" and not content else 1
    assert run(["dump", str(path)]) == expected
    assert path.read_bytes() == content, "a look changes nothing"


def test_an_unknown_file_says_what_can_be_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert run(["dump", str(path)]) == 2
    assert "checkpoint.json" in capsys.readouterr().err


def test_a_missing_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", str(tmp_path / "epochs")]) == 2
    assert "does not exist" in capsys.readouterr().err
