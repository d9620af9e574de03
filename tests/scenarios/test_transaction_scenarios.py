"""Stories of transactions, in files that a person can read: what happens, and below it what comes of it.

An unindented line is an event, such as `40ms: p commits`; the indented lines below are what the machine answered and
wrote. `pytest tests/scenarios --rewrite-scenarios` writes them anew. `support/transaction_story.py` has the words.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.transaction_story import Story
from support.words import GoesAsWritten, tell

STORIES = sorted((Path(__file__).parent / "transactions").glob("*.scenario"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_goes_as_it_is_written(path: Path, goes_as_written: GoesAsWritten) -> None:
    goes_as_written(path, Story())


def test_a_story_that_goes_otherwise_is_noticed() -> None:
    text = "0ms: p inits\n    p: PRODUCER_FENCED\n"
    assert tell(text, Story()).startswith("0ms: p inits\n    log: t Empty, producer 1 in epoch 0\n")


def test_a_word_that_is_not_known_is_refused() -> None:
    with pytest.raises(AssertionError, match="dances"):
        tell("0ms: p dances\n", Story())
