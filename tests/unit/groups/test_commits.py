"""Commits that are kept as bytes mean and write the same as partition by partition."""

from __future__ import annotations

import struct
from random import Random

import pytest

from penstock.errors import Code
from penstock.groups.changes import Changes
from penstock.groups.commits import Commit, CommitShape
from penstock.groups.offset_store import OffsetStore
from penstock.groups.offsets import Committed, OffsetRecord
from penstock.groups.records import encode, encode_commit, shape_of
from penstock.groups.rules import OffsetRules
from penstock.ids import TopicPartition
from penstock.records.batch import batch_of
from penstock.records.records import Record, build_batch

PLACES = [TopicPartition(topic, index) for topic in ("orders", "payments") for index in range(90)]
RULES = OffsetRules(max_metadata_bytes=10, retention_ms=1000, max_offsets=120, max_groups=3)
PRODUCER = 9


def commit_of(shape: CommitShape, offset: int, now_ms: int = 1_789_000_000_000) -> Commit:
    positions = [struct.pack(">qi", offset + number, number % 3 - 1) for number in range(len(shape.places))]
    return Commit(shape, positions, now_ms)


def test_a_commit_has_the_records_of_its_partitions() -> None:
    commit = commit_of(shape_of("gröup", PLACES), 1 << 40)
    one_by_one = [encode(OffsetRecord("gröup", at, committed)) for at, committed in commit.items()]
    encoded = encode_commit(commit)
    assert batch_of(b"".join(encoded.parts), encoded.record_count, 5) == build_batch(
        [Record(key, value, (), 5) for key, value in one_by_one]
    )


def test_a_commit_is_what_is_committed_for_each_partition() -> None:
    commit = commit_of(shape_of("g", PLACES[:2]), 7, now_ms=3)
    assert dict(commit) == {PLACES[0]: Committed(7, -1, "", 3), PLACES[1]: Committed(8, 0, "", 3)}


@pytest.mark.parametrize("seed", range(60))
def test_a_store_holds_the_same_whether_commits_are_kept_as_bytes_or_not(seed: int) -> None:
    random = Random(seed)
    store, plain = OffsetStore(RULES), OffsetStore(RULES)
    shapes = [shape_of(random.choice("gh"), random.sample(PLACES, random.choice((1, 5, 60)))) for _ in range(8)]
    for step in range(80):
        choice = random.random()
        shape = random.choice(shapes)
        commit = commit_of(shape, step * 1000, now_ms=step)
        if choice < 0.6:
            codes, records = store.admit(shape.group_id, commit)
            expected_codes, expected = plain.admit(shape.group_id, dict(commit))
            assert dict(codes) == dict(expected_codes)
            for record in records:
                if isinstance(record, Commit):
                    store.take(record)
                else:
                    store.apply(record)
            for record in expected:
                assert isinstance(record, OffsetRecord)
                plain.apply(record)
        elif choice < 0.7:
            for each in (store, plain):
                each.apply(OffsetRecord(shape.group_id, PLACES[step], None))
        elif choice < 0.8:
            for at, committed in list(commit.items())[:3]:
                for each in (store, plain):
                    each.apply_pending(PRODUCER, OffsetRecord(shape.group_id, at, committed))
        elif choice < 0.9:
            is_commit = random.random() < 0.5
            for each in (store, plain):
                each.end_transaction(PRODUCER, committed=is_commit)
        elif choice < 0.95:
            assert dict(store.of(shape.group_id)) == dict(plain.of(shape.group_id))
        assert set(store.group_ids) == set(plain.group_ids)
        assert len(store) == len(plain)
    assert {group: dict(held) for group, held in store.committed.items()} == {
        group: dict(held) for group, held in plain.committed.items()
    }


def test_a_look_at_the_store_shows_what_came_since() -> None:
    """Who copies offsets to a database keeps the view and looks again."""
    store = OffsetStore(RULES)
    committed = store.committed
    shape = shape_of("g", PLACES[:3])
    for offset in (10, 20):
        store.take(commit_of(shape, offset))
        assert committed["g"][PLACES[0]].offset == offset
    assert "h" not in committed


def test_a_commit_beyond_the_room_of_the_group_is_taken_as_far_as_there_is_room() -> None:
    store = OffsetStore(RULES)
    codes, records = store.admit("g", commit_of(shape_of("g", PLACES[:150]), 1))
    assert len(records) == 120
    assert [codes[at] for at in PLACES[119:121]] == [Code.NONE, Code.INVALID_COMMIT_OFFSET_SIZE]


def test_all_partitions_of_a_commit_are_marked_as_changed() -> None:
    changes = Changes()
    changes.mark_commit(shape_of("g", PLACES[:2]))
    assert changes.offsets.take() == {"orders": {("g", 0), ("g", 1)}}
    assert changes.groups.take(with_offsets=True) == {"g"}
