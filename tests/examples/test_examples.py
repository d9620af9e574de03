"""Every example is run as its reader would run it, and says what its reader would see."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.programs import environment

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_S = 90

IN_ORDER: dict[str, tuple[list[str], list[str]]] = {
    "jobs.py": (
        [],
        [
            "monday: clean starts, after extract",
            "monday: count starts, after extract",
            "monday: report starts, after clean and count",
        ],
    ),
    "callback_gateway.py": (
        [],
        ["the bank is asked for order 42, 10 EUR", "the gateway is called: paid", "order 42 is paid"],
    ),
    "unpaid_order.py": (
        ["2s"],
        ["order 1 is open", "order 2 is open", "order 1 is paid", "order 2 is closed: nobody has paid"],
    ),
    "automatic_rating.py": (
        ["2s"],
        [
            "order 1 has arrived",
            "order 2 has arrived",
            "order 1: two stars, by the customer",
            "order 2: five stars, automatically",
        ],
    ),
    "in_process_events.py": ([], ["mail: thank you for order 7", "books: order 7 is booked, attempt 2"]),
    "delays.py": ([], ["tea", "dentist at four", "good night"]),
    "delay_bridge.py": ([], ["order 1 is open", "order 2 is closed"]),
    "views.py": ([], ["order 1: checkout, eu", "order 1: refund, eu"]),
    "retries.py": (
        [],
        [
            "mail to nobody, attempt 1",
            "mail to alice, attempt 1",
            "mail to alice, attempt 2",
            "mail to nobody, attempt 2",
            "mail to nobody, attempt 3",
            "dead letter: mail to nobody, because of ConnectionError: no such host",
        ],
    ),
    "duplicates.py": ([], ["charging 10 EUR for order 42", "charging 20 EUR for order 43"]),
    "exactly_once.py": ([], ["begin", "alice -10", "bob +10"]),
    "business_tables.py": ([], ["order-1: 1 bill, 10 EUR", "order-2: 1 bill, 20 EUR"]),
    "outbox.py": (
        [],
        ["a book is shipped", "a book was ordered before: no order, no parcel", "a lamp is shipped"],
    ),
    "typed_payloads.py": (
        [],
        [
            "order 7: 2 x tea, 1 x cup, 16.00 EUR",
            "dead letter: DecodeError: not a valid Order: lines[0].price is missing",
        ],
    ),
    "unit_test.py": ([], ["an order was closed after half an hour, in no time"]),
    "unit_test_async.py": ([], ["a book was sold after half an hour and a second attempt, in no time"]),
}
"""Arguments, and what is printed."""

IN_PARTS: dict[str, tuple[list[str], list[list[str]]]] = {
    "listeners.py": (
        [],
        [
            [
                "followers are told of 'my new bicycle'",
                "search indexes 'my new bicycle'",
                "statistics counts 'my new bicycle'",
            ]
        ],
    ),
    "game_release.py": (
        ["6"],
        [
            ["forum warms up for dragons 2.0", "packages builds dragons 2.0"],
            ["app updates to dragons 2.0", "web updates to dragons 2.0"],
        ],
    ),
    "player_recharged.py": (
        [],
        [
            ["alice has recharged 300"],
            ["alice has recharged 1100"],
            ["gifts sends a dragon to alice", "service names an attendant to alice", "shop gives a discount to alice"],
        ],
    ),
}
"""Arguments, and parts of what is printed: inside a part listeners do not wait for each other."""


def said_by(name: str, arguments: Sequence[str], broker: BrokerProcess) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=RUN_S,
        env=environment({"BOOTSTRAP": broker.kafka}),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    # Handlers of some examples fail on purpose, which is logged; nothing else may.
    errors = done.stderr.decode()
    expected = re.findall(r"^group .* failed on .*\nTraceback", errors, re.MULTILINE)
    assert errors.count("Traceback") == len(expected), errors
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize("name", IN_ORDER)
def test_an_example_does_what_it_shows(broker: BrokerProcess, name: str) -> None:
    arguments, lines = IN_ORDER[name]
    said = said_by(name, arguments, broker)
    if name == "jobs.py":
        # Two of its jobs wait for the same one, and not for each other.
        said[:2] = sorted(said[:2])
    assert said == lines


@pytest.mark.parametrize("name", IN_PARTS)
def test_an_example_with_many_listeners_does_what_it_shows(broker: BrokerProcess, name: str) -> None:
    arguments, parts = IN_PARTS[name]
    said = said_by(name, arguments, broker)
    for part in parts:
        assert sorted(said[: len(part)]) == part
        said = said[len(part) :]
    assert said == []


def test_every_example_is_run_and_is_in_the_list() -> None:
    examples = {path.name for path in EXAMPLES.glob("*.py")}
    assert examples == IN_ORDER.keys() | IN_PARTS.keys()
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"[{name}]({name})" in listed for name in examples)
