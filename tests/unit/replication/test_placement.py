"""Which partition looks after a group."""

from __future__ import annotations

import pytest

from penstock.replication.placement import java_hash, partition_for


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -2147483648), ("😀", 1772899)],
)
def test_names_hash_as_in_java(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_the_one_number_without_an_absolute_value_counts_as_none() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("a", 50) == 47
