"""Consume, transform, produce: exactly once, whoever is killed. The judge over it is judged with planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import BrokerFactory
from support.exactly_once import Output, Passage, Verdict, judge
from transactions.exactly_once import SETTINGS, run


def test_the_output_is_the_input_once_each_and_in_order(new_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = new_broker(SETTINGS)
    passage, verdict, happened = run(broker, tmp_path, rounds=3, seed=3)
    assert verdict == Verdict(), (str(verdict), happened)
    assert len(passage.outputs) > 300
    assert passage.aborted
    assert sum(happened.values()) >= 3


def good() -> Passage:
    """Two partitions of six, in transactions of three, and one that was aborted."""
    outputs = [
        Output(partition, offset + offset // 3, partition, 2 * offset + partition, f"{partition}.{offset // 3}")
        for partition in (0, 1)
        for offset in range(6)
    ]
    return Passage(
        inputs={0: [0, 2, 4, 6, 8, 10], 1: [1, 3, 5, 7, 9, 11]},
        outputs=outputs,
        audited=["0.0", "0.1", "1.0", "1.1"],
        seen_live=list(outputs),
        aborted={"gone"},
        committed={"0.0", "1.1"},
        offsets={0: 6, 1: 6},
    )


def both(passage: Passage, outputs: list[Output]) -> Passage:
    return replace(passage, outputs=outputs, seen_live=outputs)


def lost(passage: Passage) -> Passage:
    return both(passage, passage.outputs[:-1])


def doubled(passage: Passage) -> Passage:
    again = replace(passage.outputs[5], offset=99)
    return both(passage, [*passage.outputs[:6], again, *passage.outputs[6:]])


def reordered(passage: Passage) -> Passage:
    a, b = passage.outputs[1], passage.outputs[2]
    swapped = [replace(a, number=b.number), replace(b, number=a.number)]
    return both(passage, [passage.outputs[0], *swapped, *passage.outputs[3:]])


def aborted_at_the_end(passage: Passage) -> Passage:
    return replace(passage, aborted={"1.0"})


def aborted_for_a_moment(passage: Passage) -> Passage:
    return replace(passage, seen_live=[*passage.seen_live, Output(1, 50, 1, 99, "gone")])


def aborted_in_the_audit(passage: Passage) -> Passage:
    return replace(passage, audited=[*passage.audited, "gone"])


def torn(passage: Passage) -> Passage:
    return replace(passage, audited=passage.audited[1:])


def untrue(passage: Passage) -> Passage:
    return replace(passage, committed={*passage.committed, "0.7"})


def seen_and_gone(passage: Passage) -> Passage:
    return replace(passage, seen_live=[*passage.seen_live, Output(0, 50, 0, 99, "0.9")])


def seen_again(passage: Passage) -> Passage:
    return replace(passage, seen_live=[*passage.seen_live, passage.seen_live[-1]])


def offsets_behind(passage: Passage) -> Passage:
    return replace(passage, offsets={0: 6, 1: 5})


def test_a_passage_without_faults_is_found_good() -> None:
    assert judge(good()) == Verdict()
    assert judge(good()).is_good


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lost, Verdict(lost=1)),
        (doubled, Verdict(doubled=1)),
        (reordered, Verdict(out_of_order=1)),
        (aborted_at_the_end, Verdict(aborted_seen=2)),
        (aborted_for_a_moment, Verdict(aborted_seen=1, unsteady=1)),
        (aborted_in_the_audit, Verdict(aborted_seen=1, torn=1)),
        (torn, Verdict(torn=1)),
        (untrue, Verdict(untrue=1)),
        (seen_and_gone, Verdict(unsteady=1)),
        (seen_again, Verdict(unsteady=1)),
        (offsets_behind, Verdict(offsets_off=1)),
    ],
)
def test_a_fault_that_was_planted_is_found(plant: Callable[[Passage], Passage], found: Verdict) -> None:
    verdict = judge(plant(good()))
    assert verdict == found
    assert not verdict.is_good
