"""What `penstock send` sends."""

from __future__ import annotations

import io

import pytest

from penstock.cli.failure import CommandError
from penstock.cli.messages.sources import generated, keyed, lines_of, repeated


def test_a_message_is_a_line_without_its_end() -> None:
    assert list(lines_of(io.BytesIO(b"a\nb\r\n\nlast"))) == [b"a", b"b", b"", b"last"]


def test_lines_need_not_be_text() -> None:
    assert list(lines_of(io.BytesIO(b"\xff\x00\n"))) == [b"\xff\x00"]


def test_without_a_separator_every_message_has_the_given_key() -> None:
    assert keyed(b"a:b", b"k", None) == (b"k", b"a:b")
    assert keyed(b"a:b", None, None) == (None, b"a:b")


def test_the_first_separator_cuts_key_from_value() -> None:
    assert keyed(b"a::b::c", None, b"::") == (b"a", b"b::c")
    assert keyed(b":v", None, b":") == (b"", b"v")


def test_a_message_without_the_separator_is_refused() -> None:
    with pytest.raises(ValueError, match="has no key separator ':'"):
        keyed(b"plain", None, b":")


def test_made_up_messages_have_exactly_the_size_and_differ() -> None:
    messages = list(generated(200, 64))
    assert {len(message) for message in messages} == {64}
    assert len(set(messages)) == 200
    assert list(generated(2, 0)) == [b"", b""]


def test_given_messages_are_repeated_in_turn() -> None:
    assert list(repeated([b"a", b"b"], 5)) == [b"a", b"b", b"a", b"b", b"a"]


def test_nothing_cannot_be_repeated() -> None:
    with pytest.raises(CommandError, match="no message to repeat"):
        list(repeated([], 3))
