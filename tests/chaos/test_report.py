"""A run is good only if everything was judged, and found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos.observers import Floors, RackReader
from chaos.report import Report
from support.exactly_once import Output, Passage, Verdict, judge
from support.pulse import Tally, tally

_KEPT = Tally(acknowledged=10, lost=0, moved=0, doubled=0, out_of_order=0, unplaced=0)


def judged() -> Report:
    return Report(
        seed=1,
        brokers=3,
        zookeepers=3,
        tallies={"ledger": _KEPT},
        passage=Verdict(),
        ends_told=10,
        follower_reads=10,
    )


def test_a_run_in_which_all_was_kept_is_good() -> None:
    assert judged().is_good


@pytest.mark.parametrize(
    "spoil",
    [
        lambda report: report.tallies.update(ledger=replace(_KEPT, lost=1)),
        lambda report: report.tallies.update(ledger=replace(_KEPT, doubled=1)),
        lambda report: report.tallies.update(ledger=replace(_KEPT, out_of_order=1)),
        lambda report: report.tallies.update(ledger=replace(_KEPT, moved=1)),
        lambda report: report.tallies.clear(),
        lambda report: setattr(report, "passage", None),
        lambda report: setattr(report, "passage", Verdict(torn=1)),
        lambda report: setattr(report, "stuck", "a partition has no leader"),
        lambda report: report.failed.append("7: timed out"),
        lambda report: report.group_faults.append("skipped: 0@7 was never seen"),
        lambda report: report.complaints.append("broker 1: Traceback"),
        lambda report: report.ends_gone_back.append("broker 1 told 7 as the end of ledger-0"),
        lambda report: report.follower_violations.append("the reader in rack a read ledger-0@9"),
        lambda report: setattr(report, "ends_told", 0),
        lambda report: setattr(report, "follower_reads", 0),
    ],
)
def test_one_thing_that_is_wrong_or_not_judged_makes_it_bad(spoil: Callable[[Report], object]) -> None:
    report = judged()
    spoil(report)
    assert not report.is_good


def test_the_longest_gap_is_laid_to_the_first_fault_in_it_or_the_last_before_it() -> None:
    report = judged()
    report.strikes += [(10.0, "the first"), (20.0, "the second"), (30.0, "the third")]
    report.note_gaps("a partition", [1.0, 9.0, 11.0, 15.0, 21.0, 24.0])
    assert report.gaps == {"a partition": (6.0, "the second")}
    report.note_gaps("a partition", [11.0, 18.0, 19.0])
    assert report.gaps == {"a partition": (7.0, "the first")}
    report.note_gaps("a partition", [19.0, 31.0])
    assert report.gaps == {"a partition": (12.0, "the second")}


def test_what_is_found_twice_is_doubled_unless_the_client_sent_it_anew_in_a_later_epoch() -> None:
    acked: dict[int, tuple[int, int | None]] = {1: (0, 0), 2: (0, 1), 3: (0, None)}
    found = [(0, 0, 1), (0, 1, 2), (0, 2, 1), (0, 3, 3)]
    both = tally(acked, found, {(0, 0): (7, 0), (0, 2): (7, 0)})
    assert (both.doubled, both.resent, both.out_of_order, both.is_good) == (1, 0, 1, False)
    anew = tally(acked, found, {(0, 0): (7, 0), (0, 2): (7, 1)})
    assert (anew.doubled, anew.resent, anew.out_of_order, anew.is_good) == (0, 1, 0, True)


def test_what_was_acknowledged_and_is_not_found_is_lost_and_elsewhere_it_is_moved() -> None:
    kept = tally({1: (0, 0), 2: (0, 1)}, [(0, 0, 1), (0, 2, 2)], {})
    assert (kept.lost, kept.moved) == (0, 1)
    assert tally({1: (0, 0), 2: (0, 1)}, [(0, 0, 1)], {}).lost == 1


def test_the_output_of_transactions_is_doubled_only_where_their_input_is_not() -> None:
    outputs = [Output(0, offset, 0, number, "one") for offset, number in enumerate((1, 2, 2))]
    passage = Passage({0: [1, 2, 2]}, outputs, ["one"], outputs, set(), {"one"}, {0: 3})
    assert judge(passage) == Verdict()
    passage.inputs = {0: [1, 2]}
    passage.offsets = {0: 2}
    assert judge(passage) == Verdict(doubled=1)


END = ("ledger", 0, 0)


def test_an_end_below_what_was_told_or_acknowledged_before_it_was_asked_for_has_gone_back() -> None:
    floors = Floors()
    floors.acknowledged("ledger", {0: 5})
    asked = floors.now()
    floors.told(1, asked, END, 7)
    floors.told(2, asked, END, 5)  # asked for before the other answer was there
    assert floors.violations == []
    floors.told(2, floors.now(), END, 6)
    assert len(floors.violations) == 1
    floors.acknowledged("ledger", {0: 9})
    floors.told(1, floors.now(), ("ledger", 0, 1), 8)
    assert len(floors.violations) == 2


@pytest.mark.parametrize(
    ("read", "violations"),
    [
        ([(0, 0, 1), (0, 1, 2)], 0),
        ([(0, 0, 1), (0, 1, 3)], 1),
        ([(0, 0, 1), (0, 0, 1), (0, 1, 2)], 1),
        ([(0, 0, 1), (0, 2, 3)], 2),
    ],
)
def test_a_reader_of_followers_must_read_what_leaders_have_once_and_without_gaps(
    read: list[tuple[int, int, int]], violations: int
) -> None:
    reader = RackReader("nowhere", "ledger", 1, "a")
    for partition, offset, number in read:
        reader.note(partition, offset, number)
    reader.compare([(0, 0, 1), (0, 1, 2)])
    assert len(reader.violations) == violations
