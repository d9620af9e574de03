"""Which dead letters are meant, and what was done with them."""

from __future__ import annotations

import pytest

from penstock.admin.dead_letter_topic import (
    DeadLetter,
    DeadLetterId,
    DeadLetterSelection,
    DeadLetterState,
    DeadLetterStates,
    parse_dead_letter_id,
    state_record,
)
from penstock.sdk.ports import Received

LETTER = Received(
    "g.dead",
    3,
    42,
    b"v",
    None,
    (
        ("penstock-attempt", b"8"),
        ("penstock-origin", b"orders/1/7/1000"),
        ("penstock-error", b"ConnectionError: no route"),
    ),
    5000,
)


def waiting() -> DeadLetter:
    return DeadLetter(LETTER, DeadLetterState.WAITING)


def test_a_letter_tells_of_itself() -> None:
    letter = waiting()
    assert (str(letter.id), letter.attempts, letter.error) == ("3/42", 8, "ConnectionError: no route")
    assert (letter.origin.topic, letter.origin.offset, letter.died_ms) == ("orders", 7, 5000)


@pytest.mark.parametrize(
    ("selection", "is_meant"),
    [
        (DeadLetterSelection(), True),
        (DeadLetterSelection(ids=frozenset({DeadLetterId(3, 42)})), True),
        (DeadLetterSelection(ids=frozenset({DeadLetterId(3, 43)})), False),
        (DeadLetterSelection(since_ms=5000), True),
        (DeadLetterSelection(since_ms=5001), False),
        (DeadLetterSelection(until_ms=5001), True),
        (DeadLetterSelection(until_ms=5000), False),
        (DeadLetterSelection(error="connectionerror"), True),
        (DeadLetterSelection(error="KeyError"), False),
        (DeadLetterSelection(origin="orders"), True),
        (DeadLetterSelection(origin="orders/1"), True),
        (DeadLetterSelection(origin="orders/1/7"), True),
        (DeadLetterSelection(origin="orders/1/70"), False),
        (DeadLetterSelection(origin="order"), False),
        (DeadLetterSelection(origin="orders", error="route", since_ms=1), True),
        (DeadLetterSelection(origin="orders", error="other", since_ms=1), False),
        (DeadLetterSelection(states=frozenset({DeadLetterState.RESENT})), False),
    ],
)
def test_a_letter_is_meant_if_everything_holds(selection: DeadLetterSelection, is_meant: bool) -> None:
    assert selection.matches(waiting()) is is_meant


def test_a_note_says_what_was_done_with_a_letter_of_its_partition() -> None:
    note = state_record(DeadLetterId(3, 42), "g.dead", DeadLetterState.RESENT)
    assert (note.topic, note.partition, note.key, note.value) == ("g.dead", 3, None, None)
    notes = DeadLetterStates()
    assert notes.state_of(LETTER) is DeadLetterState.WAITING
    read = Received("g.dead", 3, 50, None, None, note.headers)
    assert notes.is_state_record(read)
    assert not notes.is_state_record(LETTER)
    notes.read(read)
    assert notes.state_of(LETTER) is DeadLetterState.RESENT


@pytest.mark.parametrize("wrong", [b"", b"resent", b"resent x", b"burnt 42", b"\xff"])
def test_a_note_that_cannot_be_understood_says_nothing(wrong: bytes) -> None:
    notes = DeadLetterStates()
    notes.read(Received("g.dead", 3, 50, None, None, (("penstock-settled", wrong),)))
    assert notes.state_of(LETTER) is DeadLetterState.WAITING


@pytest.mark.parametrize("wrong", ["", "3", "3/", "/42", "3-42", "3/42/1", "-1/2", "a/b"])
def test_what_names_no_letter_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a dead letter"):
        parse_dead_letter_id(wrong)


def test_an_id_is_read_as_it_is_written() -> None:
    assert parse_dead_letter_id("3/42") == DeadLetterId(3, 42)
