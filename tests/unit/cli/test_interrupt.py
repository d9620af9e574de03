"""Ctrl-C that is noted while a library works, and raised while we wait."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from penstock.cli.interrupt import watch


def test_ctrl_c_is_noted_inside_and_raised_on_leaving() -> None:
    before = signal.getsignal(signal.SIGINT)
    reached = False
    with pytest.raises(KeyboardInterrupt), watch() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is before


def test_without_ctrl_c_nothing_is_raised() -> None:
    with watch() as interrupt:
        assert list(interrupt.letting([1, 2])) == [1, 2]
    assert not interrupt.asked


def test_ctrl_c_breaks_the_wait_for_the_next_value() -> None:
    def values() -> Iterator[int]:
        yield 1
        signal.raise_signal(signal.SIGINT)
        yield 2

    seen = []
    with pytest.raises(KeyboardInterrupt), watch() as interrupt:
        for value in interrupt.letting(values()):
            seen.append(value)  # noqa: PERF402
    assert seen == [1]


def test_ctrl_c_between_two_values_is_only_noted() -> None:
    seen = []
    with pytest.raises(KeyboardInterrupt), watch() as interrupt:
        for value in interrupt.letting([1, 2]):
            signal.raise_signal(signal.SIGINT)
            seen.append(value)
    assert seen == [1, 2]


def test_another_failure_inside_is_not_hidden_by_ctrl_c() -> None:
    with pytest.raises(ValueError, match="mine"), watch():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("mine")
