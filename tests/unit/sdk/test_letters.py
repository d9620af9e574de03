"""Which dead letters are meant, and what was done with them."""

from __future__ import annotations

import pytest

from penstock.sdk.ports import Received
from penstock.sdk.receive.letters import Letter, LetterId, Notes, Selection, State, note_of, parse_id

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


def waiting() -> Letter:
    return Letter(LETTER, State.WAITING)


def test_a_letter_tells_of_itself() -> None:
    letter = waiting()
    assert (str(letter.id), letter.attempts, letter.error) == ("3/42", 8, "ConnectionError: no route")
    assert (letter.origin.topic, letter.origin.offset, letter.died_ms) == ("orders", 7, 5000)


@pytest.mark.parametrize(
    ("selection", "is_meant"),
    [
        (Selection(), True),
        (Selection(ids=frozenset({LetterId(3, 42)})), True),
        (Selection(ids=frozenset({LetterId(3, 43)})), False),
        (Selection(since_ms=5000), True),
        (Selection(since_ms=5001), False),
        (Selection(until_ms=5001), True),
        (Selection(until_ms=5000), False),
        (Selection(error="connectionerror"), True),
        (Selection(error="KeyError"), False),
        (Selection(origin="orders"), True),
        (Selection(origin="orders/1"), True),
        (Selection(origin="orders/1/7"), True),
        (Selection(origin="orders/1/70"), False),
        (Selection(origin="order"), False),
        (Selection(origin="orders", error="route", since_ms=1), True),
        (Selection(origin="orders", error="other", since_ms=1), False),
        (Selection(states=frozenset({State.RESENT})), False),
    ],
)
def test_a_letter_is_meant_if_everything_holds(selection: Selection, is_meant: bool) -> None:
    assert selection.matches(waiting()) is is_meant


def test_a_note_says_what_was_done_with_a_letter_of_its_partition() -> None:
    note = note_of(LetterId(3, 42), "g.dead", State.RESENT)
    assert (note.topic, note.partition, note.key, note.value) == ("g.dead", 3, None, None)
    notes = Notes()
    assert notes.state_of(LETTER) is State.WAITING
    read = Received("g.dead", 3, 50, None, None, note.headers)
    assert notes.is_note(read)
    assert not notes.is_note(LETTER)
    notes.read(read)
    assert notes.state_of(LETTER) is State.RESENT


@pytest.mark.parametrize("wrong", [b"", b"resent", b"resent x", b"burnt 42", b"\xff"])
def test_a_note_that_cannot_be_understood_says_nothing(wrong: bytes) -> None:
    notes = Notes()
    notes.read(Received("g.dead", 3, 50, None, None, (("penstock-settled", wrong),)))
    assert notes.state_of(LETTER) is State.WAITING


@pytest.mark.parametrize("wrong", ["", "3", "3/", "/42", "3-42", "3/42/1", "-1/2", "a/b"])
def test_what_names_no_letter_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="names no dead letter"):
        parse_id(wrong)


def test_an_id_is_read_as_it_is_written() -> None:
    assert parse_id("3/42") == LetterId(3, 42)
