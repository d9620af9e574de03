"""Stories of consumer groups, in files that a person can read: what happens, and below it what comes of it.

An unindented line is an event, such as `40ms: b joins protocols=range:orders`; the indented lines below are what the
machine answered and wrote. `pytest tests/scenarios --rewrite-scenarios` writes them anew. `support/group_story.py` has
the words.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.group_story import Story
from support.words import GoesAsWritten, tell

STORIES = sorted((Path(__file__).parent / "groups").glob("*.scenario"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_goes_as_it_is_written(path: Path, goes_as_written: GoesAsWritten) -> None:
    goes_as_written(path, Story())


def test_a_story_that_goes_otherwise_is_noticed() -> None:
    text = "0ms: a joins\n    a: UNKNOWN_MEMBER_ID\n"
    assert tell(text, Story()).startswith("0ms: a joins\n    a: MEMBER_ID_REQUIRED a-1\n")


def test_a_word_that_is_not_known_is_refused() -> None:
    with pytest.raises(AssertionError, match="dances"):
        tell("0ms: a dances\n", Story())
