"""Expressions that names are found by."""

from __future__ import annotations

from time import process_time

import pytest

from penstock.groups.consumer.pattern import Pattern, PatternError


@pytest.mark.parametrize(
    ("text", "name", "is_meant"),
    [
        ("orders", "orders", True),
        ("orders", "orders-2", False),
        ("orders.*", "orders-2", True),
        ("(orders|bills)-[0-9]+", "bills-10", True),
        ("(?i)Orders", "oRDERS", True),
        (r"a\.b", "a.b", True),
        (r"a\.b", "a-b", False),
        ("[[:alpha:]]+", "abc", True),
        ("", "", True),
    ],
)
def test_the_whole_name_has_to_match(text: str, name: str, is_meant: bool) -> None:
    assert Pattern(text).matches(name) == is_meant


@pytest.mark.parametrize("text", ["(", "a)", "[a", "*a", "a{2,1}", "[b-a]", "\\", r"\1", "(?=a)", "(?<!a)b"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


@pytest.mark.parametrize("text", ["((a{100}){100}){100}", "a{999999999}"])
def test_what_would_grow_without_bound_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


@pytest.mark.parametrize("text", ["(a*)*b", "(a|a)*b", "(.*)(.*)(.*)(.*)(.*)(.*)(.*)b", "(a?){40}a{40}b"])
def test_no_expression_takes_longer_than_the_name_is_long(text: str) -> None:
    """Python's own engine would try for longer than anybody waits."""
    begun = process_time()
    assert not Pattern(text).matches("a" * 249)
    assert process_time() - begun < 5
