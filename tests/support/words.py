"""Words that every story understands, and how a story is told from a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from penstock.ids import TopicPartition

_EVENT = re.compile(r"(?:(\d+)ms: )?(.+)")


class Story(Protocol):
    """A machine that is told what happens in words."""

    def happens(self, line: str) -> list[str]:
        """What comes of an event, line by line."""

    def check_that_a_restart_would_find_the_same(self) -> None:
        """What is durable in the machine is what another one would read from its log."""


GoesAsWritten = Callable[[Path, Story], None]
"""What the scenario tests ask of a file and a new story."""


def tell(text: str, story: Story) -> str:
    """The same text with what comes of each event below it."""
    lines = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {said}" for said in story.happens(line)]
            story.check_that_a_restart_would_find_the_same()
    return "\n".join(lines) + "\n"


def event(line: str, now_ms: int) -> tuple[int, str]:
    """When something happens (now, if it does not say) and what."""
    found = _EVENT.fullmatch(line)
    assert found is not None
    return int(found[1] or now_ms), found[2]


def options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def ms(text: str) -> int:
    return int(text[:-1]) * 1000 if text.endswith("s") and not text.endswith("ms") else int(text.removesuffix("ms"))


def place(text: str) -> TopicPartition:
    topic, _, partition = text.partition("/")
    return TopicPartition(topic, int(partition))
