"""The snapshot of producers: comes back as it was, or not at all."""

from __future__ import annotations

import pytest

from penstock.records.batch import read_header
from penstock.records.control import Marker
from penstock.storage.producers import ProducerState
from penstock.storage.snapshots import read_snapshot, snapshot_of
from support.logs import batch
from support.transactions import txn_batch


def sample() -> ProducerState:
    state = ProducerState(100)
    for producer in range(3):
        for sequence in range(7):
            made = read_header(batch(b"x", producer=producer, epoch=producer, sequence=sequence))
            state.remember(made, 100 * producer + sequence, 5000 + sequence)
    for producer in (5, 4):
        state.remember(read_header(txn_batch(b"x", producer=producer)), 900 - producer, 6000)
    state.remember_marker(6, 3, Marker(committed=False, coordinator_epoch=8), 950, 6000)
    return state


def described(state: ProducerState) -> list[object]:
    return [
        (
            producer,
            entry.epoch,
            entry.last_seen_ms,
            entry.first_sequence,
            entry.coordinator_epoch,
            entry.marker_offset,
            entry.open_since,
            list(entry.batches),
        )
        for producer, entry in state.entries()
    ]


def test_a_snapshot_gives_back_every_producer_in_order() -> None:
    again = ProducerState(100)
    again.restore(read_snapshot(snapshot_of(sample())))
    assert described(again) == described(sample())
    assert snapshot_of(again) == snapshot_of(sample())


def test_an_empty_snapshot_is_sound() -> None:
    again = sample()
    again.restore(read_snapshot(snapshot_of(ProducerState(5))))
    assert len(again) == 0


def test_any_cut_or_flipped_bit_is_noticed_and_leaves_the_state_alone() -> None:
    content = snapshot_of(sample())
    broken = [content[:size] for size in range(len(content))]
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 0x20
        broken.append(bytes(flipped))
    state = sample()
    for each in broken:
        with pytest.raises(ValueError):
            state.restore(read_snapshot(each))
    assert described(state) == described(sample())


def test_what_was_known_before_a_snapshot_decides_after_it() -> None:
    again = ProducerState(100)
    again.restore(read_snapshot(snapshot_of(sample())))
    repeat = again.check(read_header(batch(b"x", producer=1, epoch=1, sequence=4)))
    assert repeat is not None and repeat.base_offset == 104
    assert again.check(read_header(batch(b"x", producer=1, epoch=1, sequence=7))) is None


def test_open_transactions_come_back_in_the_order_in_which_they_began() -> None:
    again = ProducerState(100)
    again.restore(read_snapshot(snapshot_of(sample())))
    assert again.first_unstable(1000) == 895
    again.remember_marker(5, 0, Marker(committed=True, coordinator_epoch=0), 1000, 7000)
    assert again.first_unstable(1001) == 896
    again.remember_marker(4, 0, Marker(committed=True, coordinator_epoch=0), 1001, 7000)
    assert (again.first_unstable(1001), again.first_unstable(1002)) == (896, None), "until readers may see the marker"


def test_a_marker_that_damage_took_does_not_join_two_transactions() -> None:
    state = ProducerState(100)
    state.remember(read_header(txn_batch(b"x", producer=1, epoch=0)), 10, 0)
    state.remember(read_header(txn_batch(b"x", producer=1, epoch=1)), 20, 0)
    state.remember_marker(1, 2, Marker(committed=False, coordinator_epoch=0), 30, 0)
    assert state.aborted.overlapping(0, 99) == [(1, 20)]
