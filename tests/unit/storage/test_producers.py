"""The snapshot of producers: comes back as it was, or not at all."""

from __future__ import annotations

import pytest

from penstock.errors import ApiError, Code
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
    for sequence in range(9):
        state.remember(read_header(txn_batch(b"x", producer=7, sequence=sequence)), 960 + sequence, 6000)
        if sequence in (1, 8):
            state.remember_marker(7, 0, Marker(committed=False, coordinator_epoch=8), 960 + sequence, 6000)
    return state


def outcome(state: ProducerState, sequence: int) -> Code | int:
    """What a batch of producer 1 is told: why it is refused, or where its first copy lies."""
    try:
        found = state.check(read_header(txn_batch(b"x", producer=1, sequence=sequence)), state.guard(1))
    except ApiError as error:
        return error.code
    assert found is not None
    return found.base_offset


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


def test_a_snapshot_knows_which_sequences_came_before_a_marker() -> None:
    state = ProducerState(100)
    for sequence in range(9):
        state.remember(read_header(txn_batch(b"x", producer=1, sequence=sequence)), 10 * sequence, 0)
        if sequence == 1:
            state.remember_marker(1, 0, Marker(committed=False, coordinator_epoch=0), 15, 0)
    state.restore(read_snapshot(snapshot_of(state)))
    outcomes = [outcome(state, sequence) for sequence in range(9)]
    assert outcomes[:2] == [Code.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2
    assert outcomes[2:4] == [Code.DUPLICATE_SEQUENCE_NUMBER] * 2
    assert outcomes[4:] == [40, 50, 60, 70, 80]


def test_a_snapshot_of_the_format_before_takes_nothing_from_before_a_marker_for_a_duplicate() -> None:
    """That format noted where the sequences of an epoch began, markers or not."""
    state = ProducerState(100)
    for sequence in range(9):
        state.remember(read_header(txn_batch(b"x", producer=1, sequence=sequence)), 10 * sequence, 0)
        if sequence == 1:
            state.remember_marker(1, 0, Marker(committed=False, coordinator_epoch=0), 15, 0)
    for _, entry in state.entries():
        entry.first_sequence = 0
    before = bytearray(snapshot_of(state))
    assert before[4] == 3
    before[4] = 2
    state.restore(read_snapshot(bytes(before)))
    outcomes = [outcome(state, sequence) for sequence in range(9)]
    assert outcomes[:4] == [Code.OUT_OF_ORDER_SEQUENCE_NUMBER] * 4, "of 2 and 3 it is not known"
    assert outcomes[4:] == [40, 50, 60, 70, 80]


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
