"""What can be told of records that are damaged: whose they were."""

from __future__ import annotations

import pytest

from penstock.records.compression import Codec
from penstock.records.records import Record, build_batch
from penstock.replication.lost_records import LostRange, lost
from penstock.storage.contract import DamagedRange

KEYS = [b"key-one", b"key-two"]
BATCH = bytes(build_batch([Record(key, b"value of " + key, (), 5) for key in KEYS]))


def damaged(*flipped: tuple[int, int], batch: bytes = BATCH) -> LostRange:
    data = bytearray(batch)
    for at, bit in flipped:
        data[at] ^= 1 << bit
    return lost(DamagedRange(0, 2, len(data)), bytes(data))


@pytest.mark.parametrize("value", [b"value of key-one", b"value of key-two"])
def test_a_bit_in_a_value_leaves_all_keys(value: bytes) -> None:
    found = damaged((BATCH.index(value) + 3, 6))
    assert (found.keys, found.is_complete) == (KEYS, True)


def test_every_single_bit_of_a_key_is_put_right() -> None:
    for key in KEYS:
        start = BATCH.index(key)
        for at in range(start, start + len(key)):
            for bit in range(8):
                found = damaged((at, bit))
                assert (found.keys, found.is_complete) == (KEYS, True)


def test_two_bits_of_a_key_are_left_as_they_are() -> None:
    start = BATCH.index(b"key-one")
    assert damaged((start, 0), (start + 1, 0)).keys != KEYS


def test_damage_in_the_shape_of_a_batch_says_that_keys_may_be_missing() -> None:
    for at in (9, 57, 61):  # length, count of records, length of the first record
        assert not damaged((at, 0)).is_complete


def test_nothing_is_known_of_compressed_records_and_of_missing_ones() -> None:
    squeezed = bytes(build_batch([Record(key, b"value" * 100, (), 5) for key in KEYS], codec=Codec.GZIP))
    assert damaged((80, 0), batch=squeezed) == LostRange(DamagedRange(0, 2, len(squeezed)), [], False)
    assert lost(DamagedRange(0, 2, 0), b"") == LostRange(DamagedRange(0, 2, 0), [], False)


def test_all_batches_of_a_damaged_range_are_looked_at() -> None:
    found = damaged((70, 1), batch=BATCH + BATCH)
    assert (len(found.keys), found.is_complete) == (4, True)
