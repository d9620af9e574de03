"""Which records of a lake are wanted."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from penstock.pipeline.lake.delta import LakeFile
from penstock.pipeline.lake.selection import Selection
from penstock.pipeline.topics.columns import instants


def test_files_that_cannot_have_what_is_wanted_are_left_out() -> None:
    lowest = {"partition": 2, "offset": 100, "timestamp": "2026-01-01T00:00:00.000Z"}
    highest = {"partition": 4, "offset": 200, "timestamp": "2026-01-02T00:00:00.000Z"}
    file = LakeFile("p", 1, "t", "2026-01-01", 5, json.dumps({"minValues": lowest, "maxValues": highest}))
    first_ms, last_ms = 1_767_225_600_000, 1_767_312_000_000

    def has(**wanted: Any) -> bool:
        return bool(Selection(**{"topic": "t"} | wanted).of_files([file]))

    assert has()
    assert not has(topic="u")
    assert has(partitions=frozenset({4, 9})) and not has(partitions=frozenset({1, 5}))
    assert has(first=200) and not has(first=201)
    assert has(end=101) and not has(end=100)
    assert has(since_ms=last_ms) and not has(since_ms=last_ms + 1)
    assert has(until_ms=first_ms + 1) and not has(until_ms=first_ms)


def test_rows_are_wanted_if_everything_holds() -> None:
    table = pa.table(
        {
            "offset": pa.array([1, 2, 3, 4], pa.int64()),
            "timestamp": instants(pa.array([10, None, 30, 40], pa.int64())),
            "key": pa.array([b"a", None, b"b", b"a"], pa.binary()),
            "biz_id": pa.array(["x", "x", None, "y"]),
            "tags": pa.array([["r"], None, ["r", "g"], []], pa.list_(pa.string())),
        }
    )

    def rows(**wanted: Any) -> list[int]:
        selection = Selection(topic="t", **wanted)
        column = table.select(selection.columns).column("offset")
        found: list[int] = column.filter(selection.mask(table)).to_pylist()
        return found

    assert rows() == [1, 2, 3, 4]
    assert rows(first=2, end=4) == [2, 3]
    # A record without a time is of no time.
    assert rows(since_ms=20) == [3, 4]
    assert rows(until_ms=30) == [1]
    assert rows(keys=frozenset({b"a"})) == [1, 4]
    assert rows(biz_ids=frozenset({"x", "y"}), first=2) == [2, 4]
    assert rows(tags=frozenset({"g", "z"})) == [3]
