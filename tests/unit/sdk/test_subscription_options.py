"""What a subscription can be asked for, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.sdk.dedup.store import Dedup, MemoryStore
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.receive.subscription_options import validate_options


def test_what_is_not_said_has_a_bound_of_its_own() -> None:
    options = validate_options("orders", group="g")
    assert (options.topics, options.concurrency, options.in_flight, options.deadline_ms) == (
        ("orders",),
        1,
        100,
        300_000,
    )
    assert validate_options("orders", group="g", concurrency=50).in_flight == 200
    assert validate_options("orders", group="g", ordered=True).in_flight == 1000
    assert validate_options("orders", group="g", batch=500, concurrency=2).in_flight == 4000


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"topics": []}, "topics"),
        ({"topics": ["a", ""]}, "is not a topic name"),
        ({"group": ""}, "group"),
        ({"delivery": "twice"}, "delivery"),
        ({"delivery": "exactly-once", "ordered": True}, "ordered"),
        ({"delivery": "exactly-once", "dedup": Dedup(MemoryStore())}, "dedup"),
        ({"delivery": "at-most-once", "dedup": Dedup(MemoryStore())}, "dedup"),
        ({"tags": " "}, "tags"),
        ({"rate": 0}, "rate"),
        ({"concurrency": 0}, "concurrency"),
        ({"in_flight": 0}, "in_flight"),
        ({"batch": 0}, "batch"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": 0}, "deadline"),
    ],
)
def test_what_cannot_be_used_is_named(wrong: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"topics": "orders", "group": "g"} | wrong
    with pytest.raises(InvalidInputError, match=named):
        validate_options(given.pop("topics"), **given)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="window"):
        Dedup(MemoryStore(), window=0)
