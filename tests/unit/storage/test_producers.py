"""The snapshot of producers: comes back as it was, or not at all."""

from __future__ import annotations

import pytest

from penstock.records.batch import read_header
from penstock.storage.producers import ProducerState
from support.logs import batch


def sample() -> ProducerState:
    state = ProducerState(100)
    for producer in range(3):
        for sequence in range(7):
            made = read_header(batch(b"x", producer=producer, epoch=producer, sequence=sequence))
            state.remember(made, 100 * producer + sequence, 5000 + sequence)
    return state


def described(state: ProducerState) -> list[object]:
    return [
        (producer, entry.epoch, entry.last_seen_ms, entry.first_sequence, list(entry.batches))
        for producer, entry in state.entries()
    ]


def test_a_snapshot_gives_back_every_producer_in_order() -> None:
    again = ProducerState(100)
    again.restore(sample().snapshot())
    assert described(again) == described(sample())
    assert again.snapshot() == sample().snapshot()


def test_an_empty_snapshot_is_sound() -> None:
    again = sample()
    again.restore(ProducerState(5).snapshot())
    assert len(again) == 0


def test_any_cut_or_flipped_bit_is_noticed_and_leaves_the_state_alone() -> None:
    content = sample().snapshot()
    broken = [content[:size] for size in range(len(content))]
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 0x20
        broken.append(bytes(flipped))
    state = sample()
    for each in broken:
        with pytest.raises(ValueError):
            state.restore(each)
    assert described(state) == described(sample())


def test_what_was_known_before_a_snapshot_decides_after_it() -> None:
    again = ProducerState(100)
    again.restore(sample().snapshot())
    repeat = again.check(read_header(batch(b"x", producer=1, epoch=1, sequence=4)))
    assert repeat is not None and repeat.base_offset == 104
    assert again.check(read_header(batch(b"x", producer=1, epoch=1, sequence=7))) is None
