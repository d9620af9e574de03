"""Leader epochs of a log."""

from __future__ import annotations

import pytest

from penstock.storage.epochs import EpochHistory, EpochStart


def sample() -> EpochHistory:
    return EpochHistory([EpochStart(1, 0), EpochStart(3, 50), EpochStart(4, 80)])


def test_an_epoch_is_noted_once() -> None:
    history = EpochHistory()
    assert history.begin(2, 10)
    assert not history.begin(2, 20)
    assert not history.begin(1, 20)
    assert history.starts == ((2, 10),)


def test_an_epoch_without_records_is_replaced_by_the_next() -> None:
    history = sample()
    assert history.begin(6, 80)
    assert history.starts == ((1, 0), (3, 50), (6, 80))


@pytest.mark.parametrize(
    ("epoch", "found"),
    [(0, (0, 0)), (1, (1, 50)), (2, (1, 50)), (3, (3, 80)), (4, (4, 99)), (5, (-1, -1)), (-1, (-1, -1))],
)
def test_the_end_of_an_epoch(epoch: int, found: tuple[int, int]) -> None:
    assert sample().end_of(epoch, 99) == found


@pytest.mark.parametrize(("offset", "epoch"), [(0, 1), (49, 1), (50, 3), (1000, 4)])
def test_the_epoch_of_an_offset(offset: int, epoch: int) -> None:
    assert sample().epoch_at(offset) == epoch


def test_a_trim_keeps_the_epoch_that_the_start_is_in() -> None:
    history = sample()
    assert history.trim(60)
    assert history.starts == ((3, 60), (4, 80))


def test_a_cut_drops_epochs_behind_the_new_end() -> None:
    history = sample()
    assert history.cut(80)
    assert history.starts == ((1, 0), (3, 50))
    assert not history.cut(51)


def test_a_batch_without_an_epoch_begins_none() -> None:
    history = EpochHistory()
    assert not history.begin(-1, 0)
    assert history.starts == ()


def test_text_gives_back_the_history() -> None:
    assert EpochHistory.from_text(sample().to_text()).starts == sample().starts
    assert EpochHistory.from_text("").starts == ()


@pytest.mark.parametrize("text", ["1", "1 2 3", "a b", "1 5\n1 9", "1 5\n2 5", "2 5\n1 9", "1 9\n2 5", "\n"])
def test_text_that_is_no_history_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        EpochHistory.from_text(text)
